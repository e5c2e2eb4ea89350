//! Feeds a target: first the corpus, then new inputs: the target's own generator, mutations of the
//! corpus, random bytes. An input with a new kind of outcome joins the corpus in memory and is
//! mutated further; this is the only guidance that a stable compiler offers, and it finds its way
//! into parsers well enough.
//!
//! An input that panics or does not end is written to a file and named. TIDEGATE_FUZZ is the number
//! of inputs over all targets (`make fuzz N=…`), TIDEGATE_SEED the seed; TIDEGATE_FUZZ_KEEP adds
//! inputs with new kinds of outcome to the corpus on disk.
#![allow(clippy::disallowed_methods, reason = "a run is told its length and watches the clock")]

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use crate::mutation::{Random, mutated};
use crate::support::environment::number;
use crate::support::proof;

/// Inputs over all targets in `make test`, and in `make proof`.
const BRIEFLY: u64 = 40_000;
const AT_LENGTH: u64 = 1_000_000;
/// The slowest input of a recorded run took a few milliseconds: one that takes this long hangs.
const HANG: Duration = Duration::from_secs(30);
/// Inputs kept in mind.
const KEPT_MAX: usize = 4_096;
/// Inputs kept in the corpus, for each target, and how large one may be.
const CORPUS_MAX: usize = 24;
const CORPUS_BYTES_MAX: usize = 512;
/// Random bytes of an input that is nothing else.
const NOISE_MAX: usize = 256;

/// What a target is.
pub struct Target {
    pub name: &'static str,
    /// Percent of all inputs.
    pub share: u64,
    /// What changes are made with.
    pub words: &'static [&'static str],
}

/// The input that is being eaten, and since when.
type Eating = Arc<Mutex<(Option<Instant>, Vec<u8>)>>;

struct Watch {
    eating: Eating,
    over: Arc<AtomicBool>,
}

impl Watch {
    fn over(name: &'static str) -> Watch {
        let (eating, over) = (Eating::default(), Arc::new(AtomicBool::new(false)));
        let watch = Watch { eating: Arc::clone(&eating), over: Arc::clone(&over) };
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                thread::park_timeout(Duration::from_secs(1));
                let (since, input) = &*eating.lock().unwrap();
                if since.is_some_and(|since| since.elapsed() > HANG) {
                    let file = found(name, input);
                    eprintln!("{name}: an input hangs: {}", file.display());
                    process::abort();
                }
            }
        });
        watch
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Writes a culprit down.
fn found(name: &str, input: &[u8]) -> PathBuf {
    let hash = blake3::hash(input).to_hex();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("found-{name}-{}", &hash[..12]));
    fs::write(&file, input).unwrap();
    file
}

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name)
}

/// Feeds `eat`, which tells sorts of outcome apart by a number, with what `make` makes and with
/// changes of `seeds` and of the corpus.
pub fn feed(
    target: &Target,
    seeds: Vec<Vec<u8>>,
    mut make: impl FnMut(&mut Random) -> Vec<u8>,
    mut eat: impl FnMut(&[u8]) -> u64,
) {
    let total = number("TIDEGATE_FUZZ");
    let share = total.unwrap_or_else(|| proof::times(BRIEFLY, AT_LENGTH)) * target.share / 100;
    // A long run is to look where none has looked before.
    let drawn = || total.map_or(1, |_| RandomState::new().hash_one(target.name) >> 16);
    let mut feeder = Feeder::new(target.name, number("TIDEGATE_SEED").unwrap_or_else(drawn));
    println!("{}: {share} inputs, TIDEGATE_SEED={}", target.name, feeder.seed);
    let first = [corpus_of(target.name), seeds].concat();
    let began = Instant::now();
    for input in &first {
        feeder.feed(input, &mut eat);
    }
    feeder.kept.extend(first);
    let mut random = Random::seeded(feeder.seed);
    while feeder.inputs < share {
        let input = match random.below(20) {
            0 => random.bytes(NOISE_MAX),
            1..10 if !feeder.kept.is_empty() => {
                let input = random.pick(&feeder.kept).clone();
                let other = random.pick(&feeder.kept).clone();
                mutated(&mut random, &input, &other, target.words)
            }
            _ => make(&mut random),
        };
        if feeder.feed(&input, &mut eat) && feeder.kept.len() < KEPT_MAX {
            keep(target.name, &input);
            feeder.kept.push(input);
        }
    }
    let Feeder { inputs, sorts, slowest: (took, bytes), .. } = &feeder;
    println!(
        "{}: {inputs} inputs in {:.1?}, {} sorts of outcome; the slowest, of {bytes} bytes, took \
         {took:.1?}",
        target.name,
        began.elapsed(),
        sorts.len(),
    );
}

struct Feeder {
    name: &'static str,
    seed: u64,
    watch: Watch,
    inputs: u64,
    kept: Vec<Vec<u8>>,
    sorts: HashSet<u64>,
    slowest: (Duration, usize),
}

impl Feeder {
    fn new(name: &'static str, seed: u64) -> Feeder {
        let (kept, sorts) = (Vec::new(), HashSet::new());
        let watch = Watch::over(name);
        Feeder { name, seed, watch, inputs: 0, kept, sorts, slowest: (Duration::ZERO, 0) }
    }

    /// Feeds one input; whether its sort of outcome is new.
    fn feed(&mut self, input: &[u8], eat: &mut impl FnMut(&[u8]) -> u64) -> bool {
        self.inputs += 1;
        let (began, before) = (Instant::now(), cpu_time());
        {
            let (since, held) = &mut *self.watch.eating.lock().unwrap();
            *since = Some(began);
            held.clear();
            held.extend_from_slice(input);
        }
        let eaten = catch_unwind(AssertUnwindSafe(|| eat(input)));
        self.watch.eating.lock().unwrap().0 = None;
        let took = cpu_time().saturating_sub(before);
        if took > self.slowest.0 {
            self.slowest = (took, input.len());
        }
        match eaten {
            Ok(sort) => self.sorts.insert(sort),
            Err(panic) => {
                let (file, seed) = (found(self.name, input), self.seed);
                eprintln!(
                    "{}: input {} of TIDEGATE_SEED={seed} panics; it is in {}: put it into {}",
                    self.name,
                    self.inputs,
                    file.display(),
                    corpus(self.name).display()
                );
                resume_unwind(panic)
            }
        }
    }
}

/// What this thread has computed so far: a busy machine makes no input slow.
fn cpu_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// The inputs that are kept in the repository, by name.
fn corpus_of(name: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(corpus(name)) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Adds to the corpus, where that is asked for and it has room.
fn keep(name: &str, input: &[u8]) {
    if number("TIDEGATE_FUZZ_KEEP").is_none_or(|keep| keep == 0) || input.len() > CORPUS_BYTES_MAX {
        return;
    }
    let directory = corpus(name);
    fs::create_dir_all(&directory).unwrap();
    if fs::read_dir(&directory).unwrap().count() < CORPUS_MAX {
        let hash = blake3::hash(input).to_hex();
        fs::write(directory.join(&hash[..12]), input).unwrap();
    }
}
