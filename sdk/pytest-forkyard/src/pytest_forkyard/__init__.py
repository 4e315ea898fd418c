"""A clone of a warmed virtual machine for each test.

    def test_delete(forked_vm):
        forked_vm.exec("psql", "-c", "delete from users", check=True)

The fixtures are in `plugin`, which pytest loads by itself.
"""

from forkyard_host import Vm

from ._fleet import Warm, WarmUp

__all__ = ["Vm", "Warm", "WarmUp"]
