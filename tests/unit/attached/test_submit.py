"""Which commands `sluice exec` refuses."""

from __future__ import annotations

import pytest

from containers.attached.submit import ClusterDeployMode, check_deploy_mode


@pytest.mark.parametrize(
    "command",
    [
        "spark-submit --deploy-mode cluster orders.py",
        "spark-submit --deploy-mode=cluster orders.py",
        "/opt/spark/bin/spark-submit --master yarn --conf spark.submit.deployMode=cluster orders.py",
        "env A=B spark-submit -c spark.submit.deployMode=cluster orders.py",
        "spark-submit --py-files lib.py --deploy-mode cluster orders.py",
        "spark-submit --conf spark.submit.deployMode=client --deploy-mode cluster orders.py",
    ],
)
def test_a_driver_on_another_machine_is_refused(command: str) -> None:
    with pytest.raises(ClusterDeployMode, match="--deploy-mode client"):
        check_deploy_mode(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "spark-submit orders.py",
        "spark-submit --deploy-mode client orders.py",
        "spark-submit --conf spark.submit.deployMode=cluster --deploy-mode client orders.py",
        "spark-submit orders.py --deploy-mode cluster",
        "python orders.py --deploy-mode cluster",
        "spark-submit --deploy-mode cluster --deploy-mode client orders.py",
    ],
)
def test_other_commands_are_started(command: str) -> None:
    check_deploy_mode(command.split())
