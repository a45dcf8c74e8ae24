"""Messages that leave the hub: a person who is not looking is told what happens to their notebook's GPU, and when.

Nothing here is on before a site configures it. A message is in the store before it is sent (``service.notices``).
"""
