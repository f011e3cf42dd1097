"""What every test relies on."""

import signal

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell's background job ignores Ctrl-C, and so would all that it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
