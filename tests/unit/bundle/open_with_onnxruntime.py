"""Opens a bundle's folder with ONNX Runtime's own model package reader; prints JSON.

Run as a program, in a separate process, since calls of C functions by their position in the structs
`OrtApi` and `OrtModelPackageApi` crash after a mistake. The functions have no Python binding yet.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime

API_VERSION = 31

# Positions in the struct OrtApi, which only ever grows at its end.
GET_ERROR_MESSAGE = 2
CREATE_ENV = 3
CREATE_SESSION_OPTIONS = 10
SESSION_GET_INPUT_COUNT = 30
GET_MODEL_PACKAGE_API = 427

# Positions in the struct OrtModelPackageApi.
CREATE_OPTIONS_FROM_SESSION_OPTIONS = 0
CREATE_CONTEXT = 2
GET_VARIANT_NAMES = 8
GET_VARIANT_EP_NAME = 9
SELECT_COMPONENT = 11
GET_SELECTED_VARIANT_NAME = 13
CREATE_SESSION = 15


def main(folder: str, name: str = "model") -> None:
    """Read the package, let ONNX Runtime choose a variant for its CPU, and load the variant.

    Args:
        folder: The bundle.
        name: The component.
    """
    capi = Path(onnxruntime.__file__).parent / "capi"
    library = ctypes.CDLL(str(next(capi.glob("libonnxruntime.so*"))))
    library.OrtGetApiBase.restype = ctypes.POINTER(ctypes.c_void_p)
    get_api = library.OrtGetApiBase()[0]
    table = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint32)(get_api)(API_VERSION)
    message_of = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(table[GET_ERROR_MESSAGE])
    pointers = ctypes.POINTER(ctypes.c_void_p)
    packages = ctypes.CFUNCTYPE(pointers)(table[GET_MODEL_PACKAGE_API])()

    def call(address: int | None, *arguments: Any) -> None:
        types = [ctypes.c_void_p] * len(arguments)
        function: Callable[..., Any] = ctypes.CFUNCTYPE(ctypes.c_void_p, *types)(address or 0)
        if status := function(*arguments):
            raise SystemExit(f"error: {message_of(status).decode()}")

    environment, options, package, choice = (ctypes.c_void_p() for _ in range(4))
    component, session, intent = (ctypes.c_void_p() for _ in range(3))
    names = ctypes.POINTER(ctypes.c_char_p)()
    count = ctypes.c_size_t()
    model = ctypes.c_char_p(name.encode())
    create_env = ctypes.CFUNCTYPE(
        ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)
    )(table[CREATE_ENV])
    if create_env(3, b"edgepack", ctypes.byref(environment)):
        raise SystemExit("error: no environment")
    call(table[CREATE_SESSION_OPTIONS], ctypes.byref(options))
    root = ctypes.c_char_p(folder.encode())
    call(packages[CREATE_CONTEXT], root, ctypes.byref(package))
    call(
        packages[GET_VARIANT_NAMES],
        package, model, ctypes.byref(names), ctypes.byref(count),
    )  # fmt: skip
    providers = {}
    for index in range(count.value):
        provider = ctypes.c_char_p()
        call(
            packages[GET_VARIANT_EP_NAME],
            package, model, ctypes.c_char_p(names[index]), ctypes.byref(provider),
        )  # fmt: skip
        providers[names[index].decode()] = (provider.value or b"").decode()

    create_intent = packages[CREATE_OPTIONS_FROM_SESSION_OPTIONS]
    call(create_intent, environment, options, ctypes.byref(intent))
    call(packages[SELECT_COMPONENT], package, model, intent, ctypes.byref(component))
    chosen = ctypes.c_char_p()
    call(
        packages[GET_SELECTED_VARIANT_NAME],
        component, ctypes.byref(chosen),
    )  # fmt: skip
    call(packages[CREATE_SESSION], environment, component, choice, ctypes.byref(session))
    call(table[SESSION_GET_INPUT_COUNT], session, ctypes.byref(count))
    print(
        json.dumps(
            {
                "providers": providers,
                "chosen": (chosen.value or b"").decode(),
                "input_count": count.value,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
