"""The words by which a Python of another machine becomes a program that orch sends: over the channel, as the first line of its stdin."""

# The line has no quote, dollar, backslash or exclamation mark, so sh, csh and fish read it alike. FileIO reads no byte ahead.
BOOT = "import io;exec(io.FileIO(0,closefd=False).readline())"
