//! One lock in one cell of a store that can compare and set.
