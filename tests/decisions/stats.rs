//! Statistics: what an observer is told of each check.
