"""Found by the Python processes that a watched script starts: lets them be watched, too."""

import os
import sys


def _next() -> None:
    """Run the sitecustomize that would have been found without ours."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


def _join() -> None:
    try:
        from flatline.children import join
    except ImportError:  # another environment, without flatline
        return
    join()


try:
    _next()
finally:
    if "FLATLINE_FAMILY" in os.environ:
        _join()
