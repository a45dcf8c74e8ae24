"""The JSON of the REST API, as pydantic models of the service and the client.

Amounts are integers (milli-GPU, MiB); instants are ISO-8601 with Z. Unknown keys are refused. The models of the modules
below can be imported from here; those of ``activity``, ``quota``, ``samples`` and ``status`` from their own module.
"""

from .audit import *
from .cluster import *
from .fields import *
from .jobs import *
from .notebooks import *
