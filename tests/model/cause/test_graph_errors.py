"""The reason in a message of several lines, and tracebacks without the frames of packages; the messages are those of TensorFlow 2.21."""

from __future__ import annotations

import pytest

from orchestrator.model.cause import graph_errors

PACKAGE = "/venv/lib/python3.11/site-packages"
AUTOGRAPH = f"""in user code:

    File "/home/me/train.py", line 16, in step  *
        return m(x)
    File "{PACKAGE}/keras/src/utils/traceback_utils.py", line 122, in error_handler  **
        raise e.with_traceback(filtered_tb) from None

"""
KERAS = (
    "Exception encountered when calling M.call().\n\n\x1b[1m{}\x1b[0m\n\n"
    "Arguments received by M.call():\n  • x=tf.Tensor(shape=(2, 4), dtype=float32)\n  • training=None"
)
SIZES = 'Matrix size-incompatible: In[0]: [2,3], In[1]: [5,2] {{node MatMul}} with "transpose: false"'
PY_FUNCTION = f"""Graph execution error:

Detected at node EagerPyFunc defined at (most recent call last):
  File "/home/me/train.py", line 13, in <module>

  File "{PACKAGE}/keras/src/trainer.py", line 6, in fit

ValueError: bad value
second line
Traceback (most recent call last):

  File "{PACKAGE}/tensorflow/python/ops/script_ops.py", line 267, in __call__
    return func(device, token, args)
           ^^^^^^^^^^^^^^^^^^^^^^^^^

  File "/home/me/train.py", line 4, in read
    raise ValueError("bad value")

ValueError: bad value
second line


\t [[{{{{node EagerPyFunc}}}}]] [Op:__inference_step_8]"""


def in_autograph(message: str) -> str:
    return AUTOGRAPH + "\n".join(f"    {line}" for line in message.split("\n")) + "\n"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (in_autograph(f"ValueError: {SIZES}"), SIZES),
        (in_autograph(f"ValueError: {KERAS.format(SIZES)}"), f"{SIZES}\x1b[0m"),
        (KERAS.format(in_autograph(f"ValueError: {SIZES}")), SIZES),
        (in_autograph("ValueError: no data\nfile: x\nhint: do z"), "no data"),
        (in_autograph("Stop: no: data"), "no: data"),
        (in_autograph("KeyError: 'k'"), "'k'"),
        (in_autograph("AssertionError: "), in_autograph("AssertionError: ")),
        ("in user code:", "in user code:"),
        (KERAS.format("no data\n\n  file: x"), "no data"),
        (PY_FUNCTION, "ValueError: bad value"),
        ("no data\nfile: x", "no data\nfile: x"),
    ],
)
def test_the_reason_is_the_first_line_of_the_innermost_message(message: str, reason: str) -> None:
    assert graph_errors.reason(message) == reason


def test_the_verdict_has_the_frames_of_the_user_and_the_last_one() -> None:
    def frame(path: str, function: str = "f") -> str:
        return f'  File "{path}", line 7, in {function}\n    {function}()\n'

    wrapper = frame(f"{PACKAGE}/keras/src/utils/traceback_utils.py", "error_handler")
    user, package = frame("/home/me/train.py"), frame(f"{PACKAGE}/keras/x.py")
    begin = "Traceback (most recent call last):\n"
    for given, shown in (
        (user + wrapper + package, user + package),
        (user + wrapper + user, user + user),
        (user + package * 2 + wrapper + user + wrapper, f"{user}  … 2 frames of installed packages\n{user}"),
        (user + package * 3, f"{user}  … 2 frames of installed packages\n{package}"),
        (f"{user}{wrapper}KeyError: 'a'\n\nDuring handling\n\n{begin}{user}", f"{user}KeyError: 'a'\n\nDuring handling\n\n{begin}{user}"),
        (package + wrapper, package),
        ("", ""),
    ):
        assert list(graph_errors.of_user((begin + given).splitlines())) == (begin + shown).splitlines()
    assert list(graph_errors.without_frames((user + wrapper + package).splitlines())) == (user + package).splitlines()


def test_the_verdict_has_no_arguments_of_a_call_of_keras() -> None:
    said = ["ValueError: Exception encountered when calling Dense.call().", "", "no such shape"]
    assert graph_errors.without_arguments([*said, "", "Arguments received by Dense.call():", "  • mask=None"]) == said
    assert graph_errors.without_arguments([*said, ""]) == [*said, ""]


def test_a_traceback_after_the_error_of_a_graph_is_whole_and_of_the_error_no_line_of_a_frame_is_left() -> None:
    after = f"""
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/train.py", line 20, in <module>
    cleanup()
  File "{PACKAGE}/shutil.py", line 7, in rmtree
    raise OSError(path)
OSError: /x

is not empty"""
    raised = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 13, in <module>\n    fit()\nInvalidArgumentError: '
    shown = """Graph execution error:
Detected at node EagerPyFunc defined at (most recent call last):
  File "/home/me/train.py", line 13, in <module>
ValueError: bad value
second line
Traceback (most recent call last):
  File "/home/me/train.py", line 4, in read
    raise ValueError("bad value")
ValueError: bad value
second line


\t [[{{node EagerPyFunc}}]] [Op:__inference_step_8]"""
    lines = f"{raised}{PY_FUNCTION}\n{after}".splitlines()
    assert list(graph_errors.without_frames(lines)) == f"{raised}{shown}\n{after}".splitlines()
    twice = f"{raised}{PY_FUNCTION}\n{after}\n{after}\n{raised}{PY_FUNCTION}".splitlines()
    assert list(graph_errors.without_frames(twice)) == f"{raised}{shown}\n{after}\n{after}\n{raised}{shown}".splitlines()
    only_own = PY_FUNCTION.replace(PACKAGE, "/home/me").splitlines()
    assert list(graph_errors.without_frames(only_own)) == only_own
