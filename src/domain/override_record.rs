//! Records of the overrides that operators set at run time, and the law by which replicas merge them.
//!
//! A record is the latest change of one override: its content, or a tombstone after a deletion. Of two
//! records of the same override, every replica keeps the same one, in whatever order they arrive.
//!
//! Not here: what a record's content means (`policy`), where records are stored (`store`, `app`).

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use super::time::Micros;

/// Maximum number of overrides: 100,000, as many as there are customers with a limit of their own.
pub const OVERRIDES_MAX: usize = 100_000;
/// Maximum number of records, which also include deleted and ended overrides.
pub const RECORDS_MAX: usize = 2 * OVERRIDES_MAX;
/// Maximum size of all records, in bytes: 64 MiB.
pub const RECORDS_BYTES_MAX: usize = 64 << 20;
/// Maximum size of one record, in bytes. A page of 500 records therefore has at most 2 MiB.
pub const RECORD_BYTES_MAX: usize = 4_096;
/// Time for which a deleted or ended override is remembered: 7 days. A replica that was without Redis
/// for longer may know only the override and not its deletion, so it sends nothing.
pub const TOMBSTONE_LIFETIME: Micros = Micros(7 * 86_400 * 1_000_000);
/// Bytes that a record takes in memory besides its id and content.
const RECORD_OVERHEAD: usize = 64;
/// Modulus of a table's checksum. Sums of two smaller numbers are exact in Lua.
const CHECKSUM_MODULUS: u64 = 1 << 52;

/// Latest change of one override. The greater of two records wins: the one with the higher version, of
/// these the later one, of these the one with the greater content.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OverrideRecord {
    /// Number of the change; each is higher than every number that the replica that made it knew.
    pub version: u64,
    /// Time of the change by the clock of Redis.
    pub written_at: Micros,
    /// Content of the override, or an empty text for a tombstone.
    pub body: Box<str>,
}

impl OverrideRecord {
    /// Returns whether the override was deleted.
    pub fn is_tombstone(&self) -> bool {
        self.body.is_empty()
    }
}

/// Writes the record as Redis stores it: version, time, and content, separated by spaces.
impl fmt::Display for OverrideRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.version, self.written_at.0, self.body)
    }
}

impl FromStr for OverrideRecord {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, ' ');
        let (version, written_at, body) =
            (|| Some((parts.next()?, parts.next()?, parts.next()?)))().ok_or(())?;
        let number =
            |text: &str| text.parse().ok().filter(|number| *number < CHECKSUM_MODULUS).ok_or(());
        let (version, written_at) = (number(version)?, Micros(number(written_at)?));
        Ok(OverrideRecord { version, written_at, body: body.into() })
    }
}

/// Result of merging a record into a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// The record won, and is now in the table.
    Changed,
    /// The table already had this record.
    Same,
    /// The table has a record that wins.
    Older,
    /// The table is full, or the record is too large.
    Full,
}

/// Latest record of each override, bounded in number and size.
#[derive(Debug, Default)]
pub struct OverrideTable {
    records: HashMap<Box<str>, OverrideRecord>,
    bytes: usize,
    highest: u64,
    checksum: u64,
}

impl OverrideTable {
    /// Merges a record of the override `id`.
    pub fn merge(&mut self, id: &str, record: OverrideRecord) -> Merged {
        match self.records.get(id) {
            Some(held) if *held == record => return Merged::Same,
            Some(held) if *held > record => return Merged::Older,
            Some(_) | None if !self.has_room(id, record.body.len()) => return Merged::Full,
            Some(_) | None => self.forget(id),
        }
        self.bytes += id.len() + record.body.len() + RECORD_OVERHEAD;
        self.checksum = (self.checksum + checksum_of(&record)) % CHECKSUM_MODULUS;
        self.highest = self.highest.max(record.version);
        self.records.insert(id.into(), record);
        Merged::Changed
    }

    /// Removes a record that has been remembered for long enough.
    pub fn forget(&mut self, id: &str) {
        if let Some(former) = self.records.remove(id) {
            self.bytes -= id.len() + former.body.len() + RECORD_OVERHEAD;
            self.checksum = subtract(self.checksum, checksum_of(&former));
        }
    }

    /// Returns the record of an override.
    pub fn get(&self, id: &str) -> Option<&OverrideRecord> {
        self.records.get(id)
    }

    /// Returns all records, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &OverrideRecord)> {
        self.records.iter().map(|(id, record)| (&**id, record))
    }

    /// Returns the highest version that the table has ever had.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Returns the difference of another table's checksum to this one's: 0 if both have the same records.
    /// The checksum is the sum of all versions and times, in microseconds.
    pub fn difference(&self, checksum: u64) -> u64 {
        subtract(checksum % CHECKSUM_MODULUS, self.checksum)
    }

    /// Returns whether a record of the override `id` with `length` bytes of content fits.
    pub fn has_room(&self, id: &str, length: usize) -> bool {
        let size = id.len() + length;
        let (count, former) = match self.records.get(id) {
            Some(held) => (self.records.len(), id.len() + held.body.len() + RECORD_OVERHEAD),
            None => (self.records.len() + 1, 0),
        };
        let bytes = self.bytes - former + size + RECORD_OVERHEAD;
        // What makes a table smaller fits in any case.
        let is_smaller = bytes <= self.bytes;
        size <= RECORD_BYTES_MAX
            && count <= RECORDS_MAX
            && (bytes <= RECORDS_BYTES_MAX || is_smaller)
    }
}

fn checksum_of(record: &OverrideRecord) -> u64 {
    (record.version + record.written_at.0) % CHECKSUM_MODULUS
}

fn subtract(checksum: u64, removed: u64) -> u64 {
    (checksum + CHECKSUM_MODULUS - removed) % CHECKSUM_MODULUS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(version: u64, time: u64, body: &str) -> OverrideRecord {
        OverrideRecord { version, written_at: Micros(time), body: body.into() }
    }

    /// Small pseudo-random numbers, always the same.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % bound
        }
    }

    fn contents(table: &OverrideTable) -> (Vec<(String, OverrideRecord)>, u64, u64, usize) {
        let mut listed: Vec<_> =
            table.iter().map(|(id, record)| (id.to_owned(), record.clone())).collect();
        listed.sort();
        (listed, table.highest(), table.checksum, table.bytes)
    }

    #[test]
    fn tables_that_merge_the_same_records_in_any_order_any_number_of_times_are_the_same() {
        let mut numbers = Numbers(7);
        for _ in 0..2_000 {
            let any = |numbers: &mut Numbers| {
                let body = ["", "a", "b", "bb"][numbers.below(4)];
                let record = record(numbers.below(4) as u64, numbers.below(3) as u64, body);
                (["x", "y", "z"][numbers.below(3)], record)
            };
            let records: Vec<_> = (0..8).map(|_| any(&mut numbers)).collect();
            let mut tables = [OverrideTable::default(), OverrideTable::default()];
            for (id, record) in &records {
                tables[0].merge(id, record.clone());
            }
            let mut shuffled: Vec<_> = records.iter().chain(&records).collect();
            for at in (1..shuffled.len()).rev() {
                shuffled.swap(at, numbers.below(at + 1));
            }
            for (id, record) in shuffled {
                tables[1].merge(id, record.clone());
            }
            assert_eq!(contents(&tables[0]), contents(&tables[1]), "{records:?}");
        }
    }

    #[test]
    fn the_higher_version_wins_then_the_later_time_then_the_greater_content() {
        let ascending = [record(1, 9, "z"), record(2, 1, ""), record(2, 2, ""), record(2, 2, "a")];
        let mut table = OverrideTable::default();
        for record in &ascending {
            assert_eq!(table.merge("x", record.clone()), Merged::Changed);
            assert_eq!(table.merge("x", record.clone()), Merged::Same);
        }
        for record in &ascending[..3] {
            assert_eq!(table.merge("x", record.clone()), Merged::Older);
        }
        assert_eq!(table.get("x"), ascending.last());
    }

    #[test]
    fn a_record_is_read_as_it_is_written() {
        for record in [record(1, 2, ""), record(1 << 40, 3, "{\"a\": \"b c\"}")] {
            assert_eq!(record.to_string().parse(), Ok(record));
        }
        for bad in ["", "1", "1 2", "1 x y", "-1 2 y", "4503599627370496 2 y"] {
            assert_eq!(bad.parse::<OverrideRecord>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn the_number_and_the_size_of_records_are_bounded() {
        let mut table = OverrideTable::default();
        let large = "x".repeat(RECORD_BYTES_MAX);
        assert_eq!(table.merge("id", record(1, 1, &large)), Merged::Full);
        for n in 0..RECORDS_MAX {
            assert_eq!(table.merge(&format!("{n}"), record(1, 1, "b")), Merged::Changed);
        }
        assert_eq!(table.merge("one more", record(1, 1, "b")), Merged::Full);
        assert_eq!(table.merge("0", record(2, 1, "")), Merged::Changed, "a deletion fits");
        table.forget("0");
        assert_eq!(table.merge("one more", record(1, 1, "b")), Merged::Changed);

        let mut table = OverrideTable::default();
        let body = "x".repeat(4_000);
        let fits = (0..RECORDS_MAX)
            .take_while(|n| table.merge(&format!("{n}"), record(1, 1, &body)) == Merged::Changed)
            .count();
        assert!((16_000..17_000).contains(&fits), "{fits}");
        assert!(table.bytes <= RECORDS_BYTES_MAX);
        (0..fits).for_each(|n| table.forget(&format!("{n}")));
        assert_eq!(contents(&table), (Vec::new(), 1, 0, 0));
    }
}
