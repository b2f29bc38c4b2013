"""The pure core: types, tables, judgements, placement, projections. No IO, no clock, no randomness."""
