"""Which commands `sluice exec` refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from containers.attached.submit import ClusterDeployMode, check_deploy_mode

CLUSTER, CLIENT = "spark.submit.deployMode  cluster\n", "spark.submit.deployMode=client\n"


@pytest.mark.parametrize(
    "command",
    [
        "spark-submit --deploy-mode cluster orders.py",
        "spark-submit --deploy-mode=cluster orders.py",
        "/opt/spark/bin/spark-submit --master yarn --conf spark.submit.deployMode=cluster orders.py",
        "env A=B spark-submit -c spark.submit.deployMode=cluster orders.py",
        "env DEPLOY_MODE=cluster spark-submit orders.py",
        "spark-submit --py-files lib.py --deploy-mode cluster orders.py",
        "spark-submit --verbose --deploy-mode cluster orders.py",
        "spark-submit --conf spark.submit.deployMode=client --deploy-mode cluster orders.py",
        "/usr/bin/spark3-submit --deploy-mode cluster orders.py",
        "spark-submit.cmd --deploy-mode cluster orders.py",
        "spark-submit2.cmd --deploy-mode cluster orders.py",
        "nice spark-class org.apache.spark.deploy.SparkSubmit --deploy-mode cluster orders.py",
    ],
)
def test_a_driver_on_another_machine_is_refused(command: str) -> None:
    with pytest.raises(ClusterDeployMode, match="--deploy-mode client"):
        check_deploy_mode(command.split(), {})


@pytest.mark.parametrize(
    "command",
    [
        "spark-submit orders.py",
        "spark-submit --deploy-mode client orders.py",
        "spark-submit --conf spark.submit.deployMode=cluster --deploy-mode client orders.py",
        "spark-submit orders.py --deploy-mode cluster",
        "spark-submit --class Orders orders --deploy-mode cluster",
        "python orders.py --deploy-mode cluster",
        "python spark-submit.py --deploy-mode cluster",
        "spark-submit --deploy-mode cluster --deploy-mode client orders.py",
    ],
)
def test_other_commands_are_started(command: str) -> None:
    check_deploy_mode(command.split(), {})


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    """The home of a Spark whose defaults have the deploy mode cluster."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch(mode=0o755)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(f"# the cluster\nspark.master yarn\n{CLUSTER}spark.ui.enabled: false\n")
    return tmp_path


def test_a_deploy_mode_in_the_defaults_of_spark_counts(spark: Path) -> None:
    for variables in ({"SPARK_CONF_DIR": str(spark / "conf")}, {"SPARK_HOME": str(spark)}, {"PATH": str(spark / "bin")}):
        with pytest.raises(ClusterDeployMode, match=r"spark-defaults\.conf"):
            check_deploy_mode(["spark-submit", "orders.py"], variables)
    with pytest.raises(ClusterDeployMode):
        check_deploy_mode([str(spark / "bin" / "spark-submit"), "orders.py"], {})
    check_deploy_mode(["spark-submit", "orders.py"], {"SPARK_HOME": str(spark), "SPARK_CONF_DIR": str(spark / "bin")})


def test_a_deploy_mode_in_the_defaults_of_a_spark_that_pip_has_installed_counts(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch(mode=0o755)
    conf = tmp_path / "lib" / "python3.11" / "site-packages" / "pyspark" / "conf"
    conf.mkdir(parents=True)
    (conf / "spark-defaults.conf").write_text(CLUSTER)
    with pytest.raises(ClusterDeployMode):
        check_deploy_mode(["spark-submit", "orders.py"], {"PATH": str(tmp_path / "bin")})


def test_a_deploy_mode_in_the_environment_counts_last(spark: Path) -> None:
    with pytest.raises(ClusterDeployMode, match="DEPLOY_MODE"):
        check_deploy_mode(["spark-submit", "orders.py"], {"DEPLOY_MODE": "cluster"})
    (spark / "conf" / "spark-defaults.conf").write_text(CLIENT)
    check_deploy_mode(["spark-submit", "orders.py"], {"DEPLOY_MODE": "cluster", "SPARK_HOME": str(spark)})


def test_options_win_over_files(spark: Path) -> None:
    for option in ("--deploy-mode client", "--conf spark.submit.deployMode=client"):
        check_deploy_mode(["spark-submit", *option.split(), "orders.py"], {"SPARK_HOME": str(spark)})


def test_a_properties_file_takes_the_place_of_the_defaults_unless_both_are_asked_for(spark: Path) -> None:
    variables, file = {"SPARK_HOME": str(spark)}, spark / "orders.properties"
    submit = ["spark-submit", "--properties-file", str(file)]
    file.write_text("spark.master yarn\n")
    check_deploy_mode([*submit, "orders.py"], variables)
    with pytest.raises(ClusterDeployMode):
        check_deploy_mode([*submit, "--load-spark-defaults", "orders.py"], variables)
    file.write_text(CLIENT)
    check_deploy_mode([*submit, "--load-spark-defaults", "orders.py"], variables)
    file.write_text(f"{CLIENT}spark.app.name a\\\nb\n{CLUSTER}")
    with pytest.raises(ClusterDeployMode, match=r"orders\.properties"):
        check_deploy_mode([*submit, "orders.py"], {})
