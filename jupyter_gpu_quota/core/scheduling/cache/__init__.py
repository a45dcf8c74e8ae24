"""Everything that is kept between ticks. Plans are equal with and without it."""
