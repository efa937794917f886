//! Kernel `gather` on the simulator: bit by bit what was stored, from the pool and from the cache, whatever happened
//! to the tensor in between.

mod caches;
mod changes;
mod damage;
mod device;
mod ids;
mod make;
mod rows;
mod threads;
mod world;
