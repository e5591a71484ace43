from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from containers.state.diff import DirDiff, Identity, LocalDir, LocalFile, diff, files_to_read, is_stable, next_index
from sluice.core.snapshots.fingerprint import Fingerprint
from sluice.core.snapshots.snapshot import BlobId, DirIndex, FileBlob, FileIndex, FileMetadata, walk

NOW = 1_700_000_000_000_000_000


def digest(body: str) -> str:
    return f"sha256 of {body}"


def local(name: str, body: str = "x", inode: int = 1, mode: int = 0o644, modified: int = NOW) -> LocalFile:
    return LocalFile(name, Identity(inode, len(body), modified), FileMetadata(1, 2, len(body), "app", "app", mode))


def indexed(name: str, body: str = "x", blob: str = "b", mode: int = 0o644) -> FileIndex:
    return FileIndex(name, (FileBlob(BlobId(blob), 0),), FileMetadata(1, 2, len(body), "app", "app", mode), 7, digest(body))


def known(**bodies: str) -> dict[Identity, Fingerprint]:
    """The contents of files by their inode, written i1, i2, …"""
    return {Identity(int(inode[1:]), len(body), NOW): Fingerprint(7, digest(body)) for inode, body in bodies.items()}


def test_without_a_snapshot_before_everything_is_added() -> None:
    tree = LocalDir("", (local("a"),), (LocalDir("d", (local("b"),), (LocalDir("empty"),)),))
    found = diff(tree, None, {})
    assert [path for path, _ in found.walk_added()] == ["a", "d/b"]
    assert (found.retained, found.removed, found.dirs_retained, found.dirs_removed) == ((), (), (), ())
    assert found.dirs_added[0].dirs_added == (DirDiff("empty"),)


def test_a_file_that_is_the_same_is_retained_with_its_blobs() -> None:
    found = diff(LocalDir("", (local("a"),)), DirIndex("", (indexed("a"),)), known(i1="x"))
    assert found == DirDiff("", retained=(indexed("a"),))


def test_a_new_name_is_added_and_a_missing_one_is_removed() -> None:
    found = diff(LocalDir("", (local("b"),)), DirIndex("", (indexed("a"),)), known(i1="x"))
    assert found == DirDiff("", added=(local("b"),), removed=(indexed("a"),))


def test_a_file_of_another_size_is_removed_and_added() -> None:
    found = diff(LocalDir("", (local("a", "xx"),)), DirIndex("", (indexed("a"),)), {})
    assert found == DirDiff("", added=(local("a", "xx"),), removed=(indexed("a"),))


def test_a_file_changed_in_place_at_the_same_size_is_removed_and_added() -> None:
    found = diff(LocalDir("", (local("a", "y"),)), DirIndex("", (indexed("a", "x"),)), known(i1="y"))
    assert found == DirDiff("", added=(local("a", "y"),), removed=(indexed("a", "x"),))


def test_a_file_that_was_not_read_counts_as_changed() -> None:
    found = diff(LocalDir("", (local("a"),)), DirIndex("", (indexed("a"),)), {})
    assert found.added == (local("a"),)


def test_a_file_without_a_sha256_in_the_index_of_samza_counts_as_changed() -> None:
    found = diff(LocalDir("", (local("a"),)), DirIndex("", (replace(indexed("a"), digest=None),)), known(i1="x"))
    assert found.added == (local("a"),)


def test_a_change_of_owner_mode_or_times_uploads_nothing_and_is_recorded() -> None:
    mine = local("a", mode=0o600)
    mine = mine._replace(metadata=mine.metadata._replace(owner="other", modified_millis=9))
    found = diff(LocalDir("", (mine,)), DirIndex("", (indexed("a"),)), known(i1="x"))
    assert found.retained == (replace(indexed("a"), metadata=mine.metadata),)


def test_sub_directories_are_added_retained_and_removed_with_all_that_is_in_them() -> None:
    before = DirIndex(
        "", dirs=(DirIndex("gone", (indexed("a"),), dirs=(DirIndex("deep", (indexed("b"),)),)), DirIndex("kept", (indexed("c"),)))
    )
    tree = LocalDir("", dirs=(LocalDir("kept", (local("c"), local("d", inode=2))), LocalDir("new", (local("e", inode=3),))))
    found = diff(tree, before, known(i1="x"))
    assert found.dirs_removed == (before.dirs[0],)
    assert found.dirs_retained == (DirDiff("kept", added=(local("d", inode=2),), retained=(indexed("c"),)),)
    assert [path for path, _ in found.walk_added()] == ["new/e", "kept/d"]
    assert [path for path, _ in found.walk_retained()] == ["kept/c"]


def test_a_file_that_became_a_directory_is_removed_and_added() -> None:
    found = diff(LocalDir("", dirs=(LocalDir("a", (local("b"),)),)), DirIndex("", (indexed("a"),)), known(i1="x"))
    assert (found.removed, [path for path, _ in found.walk_added()]) == ((indexed("a"),), ["a/b"])


def test_removals_in_a_removed_directory_are_dropped_from_the_index() -> None:
    before = DirIndex("", dirs=(DirIndex("d", (indexed("a"),), (indexed("long-gone"),), (), (DirIndex("older"),)),))
    assert diff(LocalDir(""), before, {}).dirs_removed == (DirIndex("d", (indexed("a"),)),)


def test_only_files_that_may_be_the_same_and_are_not_known_are_read() -> None:
    tree = LocalDir("", (local("longer", "xx", 2), local("new", "x", 3), local("read", "x", 1), local("same", "x", 4)))
    before = DirIndex("", tuple(indexed(name) for name in ("longer", "read", "same")))
    assert [path for path, _ in files_to_read(tree, before, known(i1="x"))] == ["same"]
    assert list(files_to_read(tree, None, {})) == []


def test_a_file_changed_in_the_tick_it_was_read_in_is_read_again() -> None:
    assert not is_stable(Identity(1, 1, NOW), NOW + 1_000_000)
    assert is_stable(Identity(1, 1, NOW), NOW + 3_000_000_000)
    assert not is_stable(Identity(1, 1, NOW), NOW - 3600 * 10**9), "with a clock that is behind, every file is read"


def test_a_retained_file_that_was_put_again_has_its_new_blobs_and_counts_as_removed_too() -> None:
    found = diff(LocalDir("", (local("a"), local("b", inode=2))), DirIndex("", (indexed("a"),)), known(i1="x"))
    root = next_index(found, {"a": indexed("a", blob="new"), "b": indexed("b", blob="new")})
    assert root == DirIndex("", (indexed("a", blob="new"), indexed("b", blob="new")), (indexed("a"),))


# --- for any trees ----------------------------------------------------------------------------------------------------

Bodies = dict[str, str]
bodies: st.SearchStrategy[Bodies] = st.dictionaries(
    st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "f/a"]), st.sampled_from(["", "x", "y", "xx"])
)


def as_local(tree: Bodies) -> tuple[LocalDir, dict[Identity, Fingerprint]]:
    fingerprints: dict[Identity, Fingerprint] = {}

    def directory(name: str, below: dict[str, str], prefix: str) -> LocalDir:
        files = []
        for each in sorted(path for path in below if "/" not in path):
            file = local(each, below[each], hash((prefix, each, below[each])))
            fingerprints[file.identity] = Fingerprint(7, digest(below[each]))
            files.append(file)
        inside = sorted({path.partition("/")[0] for path in below if "/" in path})
        dirs = [directory(d, {p.partition("/")[2]: b for p, b in below.items() if p.startswith(d + "/")}, f"{prefix}{d}/") for d in inside]
        return LocalDir(name, tuple(files), tuple(dirs))

    return directory("", tree, ""), fingerprints


def snapshot(tree: Bodies, before: DirIndex | None, blob: str) -> tuple[DirDiff, DirIndex]:
    listing, fingerprints = as_local(tree)
    found = diff(listing, before, fingerprints)
    return found, next_index(found, {path: indexed(file.name, tree[path], blob) for path, file in found.walk_added()})


@given(bodies, bodies)
def test_the_next_index_has_the_local_files_and_only_changed_ones_have_new_blobs(first: Bodies, second: Bodies) -> None:
    _, before = snapshot(first, None, "old")
    found, after = snapshot(second, before, "new")
    assert {path: file.digest for path, file in walk(after)} == {path: digest(body) for path, body in second.items()}
    changed = {path for path, body in second.items() if first.get(path) != body}
    assert {path for path, file in walk(after) if file.blobs[0].blob == "new"} == changed
    assert {path for path, _ in found.walk_added()} == changed


@given(bodies, bodies)
def test_earlier_files_are_either_retained_or_removed(first: Bodies, second: Bodies) -> None:
    _, before = snapshot(first, None, "old")
    found, after = snapshot(second, before, "new")

    def removed(directory: DirDiff, prefix: str = "") -> list[str]:
        below = [path for each in directory.dirs_removed for path, _ in walk(each, f"{prefix}{each.name}/")]
        inside = [path for each in directory.dirs_retained for path in removed(each, f"{prefix}{each.name}/")]
        return [*(prefix + file.name for file in directory.removed), *below, *inside]

    retained = [path for path, _ in found.walk_retained()]
    assert sorted(retained + removed(found)) == sorted(first)
    present = {part.blob for _, file in walk(after) for part in file.blobs}
    assert present <= {"old", "new"}
