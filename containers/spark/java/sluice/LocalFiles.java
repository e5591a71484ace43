package sluice;

import java.io.IOException;
import java.lang.reflect.Field;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends RawLocalFileSystem {

    public void setPermission(Path path, FsPermission permission) throws IOException {
        if (permission.getStickyBit()) {
            super.setPermission(path, permission);
            return;
        }
        String symbols = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL + permission.getOtherAction().SYMBOL;
        try {
            Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(symbols));
        } catch (UnsupportedOperationException e) {
            super.setPermission(path, permission);
        }
    }

    public static void install(Configuration configuration) throws Exception {
        LocalFiles files = new LocalFiles();
        files.initialize(URI.create("file:///"), configuration);
        Field raw = FilterFileSystem.class.getDeclaredField("fs");
        raw.setAccessible(true);
        raw.set(FileSystem.getLocal(configuration), files);
    }
}
