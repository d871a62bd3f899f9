"""Models of transformers, from a local folder or the hub; the library is not imported until one is asked for."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from debiaser.errors import Problem

FILES = ("*.json", "*.txt", "*.model", "*.safetensors")  # configuration, tokenizer, weights: no pickle, no code


def transformers() -> Any:
    """The library, or one line that says how to get it."""
    try:
        import transformers as library
    except ImportError as error:
        raise Problem("this network needs transformers; pip install 'debiaser[models]'") from error
    return library


def model_folder(name: str) -> Path:
    """The folder with a model's files: a local one of that name, else the hub's, fetched once and then cached."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise Problem(f"there is no folder {name}; name a folder with config.json and model.safetensors, or a hub name")
    transformers()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    place = "download it where there is a network and name its folder"
    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES), ignore_patterns=["onnx/*", "openvino/*"]))
    except LocalEntryNotFoundError as error:  # also when HF_HUB_OFFLINE is set
        raise Problem(f"'{name}' is no folder, not in the cache, and the hub cannot be reached; {place}") from error
    except HFValidationError as error:
        raise Problem(f"'{name}' is neither a folder nor the name of a model on the hub; check its spelling") from error
    except (HfHubHTTPError, OSError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        told = "needs a login or does not exist" if status in (401, 403, 404) else f"failed ({type(error).__name__})"
        raise Problem(f"fetching '{name}' from the hub {told}; check its spelling, or {place}") from error


def load_model(maker: str, folder: Path, new: tuple[str, ...] = (), **changes: Any) -> nn.Module:
    """The model of a folder through one of transformers' Auto classes; only layers named in `new` may lack weights."""
    library = transformers()
    if not (folder / "config.json").is_file():
        raise Problem(f"{folder} holds no config.json; name a folder that transformers' save_pretrained wrote")
    if not any(folder.glob("*.safetensors")):
        raise Problem(f"{folder} holds no *.safetensors; write it with save_pretrained (pickles are never loaded)")
    with quiet():
        try:
            model, told = getattr(library, maker).from_pretrained(
                folder, use_safetensors=True, local_files_only=True, output_loading_info=True, **changes
            )
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
            raise Problem(f"cannot load {folder} with transformers: {reason}; check the folder") from error
    absent = {*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])}
    missing = sorted(key for key in absent if not any(part in key for part in new))
    if missing:
        raise Problem(
            f"{folder} does not hold this network: {len(missing)} tensors are absent or of another shape, "
            f"such as {missing[0]}; name another folder"
        )
    loaded: nn.Module = model
    return loaded


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, able to pad."""
    with quiet():
        try:
            tokenizer = transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:
            raise Problem(f"{folder} holds no tokenizer that transformers can load; name a text model") from error
    if tokenizer.pad_token is None:  # models that only ever continue a text have none
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Loading without transformers' bars and reports, which we check ourselves; its settings are as before after."""
    told = transformers().utils.logging
    level, bars = told.get_verbosity(), told.is_progress_bar_enabled()
    told.set_verbosity(logging.CRITICAL)
    told.disable_progress_bar()
    try:
        yield
    finally:
        told.set_verbosity(level)
        if bars:
            told.enable_progress_bar()
