"""From a path to a checked configuration."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.config.problems import ConfigError, Problem, problems_of
from orchestrator.config.yaml_text import YamlError, documents

Model = TypeVar("Model", bound=BaseModel)


def load(path: Path, model: type[Model]) -> Model:
    """Read a configuration file. Raises ConfigError with everything that is wrong with it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError([Problem(str(path), "", "", "", f"cannot be read: {reason}")]) from error
    return parse(data, model, str(path))


def parse(data: bytes, model: type[Model], file: str) -> Model:
    """Check the text of a configuration file; `file` is only its name. Raises ConfigError."""
    try:
        found = documents(data)
    except YamlError as error:
        raise ConfigError([Problem(f"{file}:{error.line}", "", "", "", error.what)]) from error
    if len(found) > 1:
        raise ConfigError([Problem(f"{file}:{found[1].line}", "", "", "", "a second document; one is allowed")])
    try:
        return model.model_validate(found[0].value if found else {})
    except ValidationError as error:
        raise ConfigError(problems_of(error, model, file)) from error
