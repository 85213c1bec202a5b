"""From how many values on what is reduced, or normalized by a softmax, is lowered. Fewer are left to Inductor: it starts sooner."""

MESSAGE = 16_384
SOFTMAX = 2_048
COUNT = 4_096  # of a sum of ones, by which degrees are counted
RELU = 262_144  # see rows.is_slow_in_inductor
