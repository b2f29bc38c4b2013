"""Which folders are packages: the one thing pyproject.toml cannot say.

`deploy/lab` is the package `bgplb_lab`; setuptools' automatic discovery cannot combine
such a mapping with discovery of the others, so both are put together here.
"""

from setuptools import find_packages, setup

PRODUCT = ["fsm", "birdctl", "dataplane", "orchestrator"]
LAB = "deploy/lab"

setup(
    packages=[
        *find_packages(".", include=[pattern for name in PRODUCT for pattern in (name, f"{name}.*")]),
        "bgplb_lab",
        *(f"bgplb_lab.{name}" for name in find_packages(LAB)),
    ],
    package_dir={"bgplb_lab": LAB},
)
