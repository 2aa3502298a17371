//! What lists show, on a real database filled row by row through one helper.

mod jobs;
mod nodes;
mod world;
