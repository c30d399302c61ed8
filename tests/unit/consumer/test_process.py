import subprocess
import sys

_PROGRAM = """
import gc, weakref
from consumer.process import collect_rarely

loaded = len(gc.get_objects())
collect_rarely()
print(loaded, len(gc.get_objects()))

class Node: ...

first, second = Node(), Node()
first.other, second.other = second, first
gone = weakref.ref(first)
del first, second
gc.collect()
print(gone() is None)
"""


def test_what_is_loaded_is_walked_no_more_and_what_comes_later_is_still_collected() -> None:
    output = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60)

    counts, is_collected = output.stdout.splitlines()
    loaded, walked = map(int, counts.split())
    assert loaded > 20_000
    assert walked < 100
    assert is_collected == "True"
