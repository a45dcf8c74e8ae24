"""The search for the cheapest legal set of operations that makes room for a claim.

``find`` begins a search: ``first_candidate`` decides the frequent case; ``cheapest`` examines every set among few
candidates, with those of ``mild_sets`` beside the pauses and moves; ``rank_by_rank`` walks many, with the sets on one
slot from ``slot_sets``, and ``unneeded`` drops what was not needed. ``attempt`` is what has been chosen so far.
``room`` tests whether a set makes room (``node_rooms``, ``ledger_rooms``).
"""
