//! Runs the lock client of Rust for `python -m bench --languages`. ../README.md describes the command line.

use std::process::exit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rslock::LockManager;
use tokio::io::{stdin, AsyncBufReadExt, BufReader};
use tokio::sync::Barrier;

const TTL: Duration = Duration::from_secs(10);

/// One run: so many callers, for a number of seconds or of cycles.
struct Order {
    mode: String,
    callers: usize,
    cycles: usize,
    seconds: f64,
}

fn fail(reason: &str) -> ! {
    eprintln!("{reason}");
    exit(1);
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| fail(&format!("{text} is not a number")))
}

impl Order {
    /// Read "MODE AMOUNT [CALLERS]"; the amount is cycles as "2000", or seconds as "0.5s".
    fn parse(line: &str) -> Order {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !(2..=3).contains(&words.len()) || !["cycle", "tasks"].contains(&words[0]) {
            fail(&format!("expected cycle or tasks, an amount, and the callers; got {line}"));
        }
        let (cycles, seconds) = match words[1].strip_suffix('s') {
            Some(seconds) => (0, number(seconds)),
            None => (number(words[1]), 0.0),
        };
        Order { mode: words[0].to_string(), callers: words.get(2).map_or(1, |text| number(text)), cycles, seconds }
    }
}

/// Acquire and release the lock of one name.
async fn cycle(manager: &LockManager, name: &str) {
    match manager.lock(name, TTL).await {
        Ok(lock) => manager.unlock(&lock).await,
        Err(error) => fail(&format!("{name}: {error}")),
    }
}

/// Run one caller to the end of the order, with a new name for each cycle. Return the time of each cycle.
async fn call(manager: LockManager, order: Arc<Order>, prefix: String, line: Arc<Barrier>) -> Vec<Duration> {
    let most = if order.cycles > 0 { (order.cycles / order.callers).max(1) } else { usize::MAX };
    let mut times = Vec::new();
    line.wait().await;
    let begin = Instant::now();
    let mut before = begin;
    while times.len() < most && (order.cycles > 0 || before.duration_since(begin).as_secs_f64() < order.seconds) {
        cycle(&manager, &format!("{prefix}{}", times.len())).await;
        let after = Instant::now();
        times.push(after - before);
        before = after;
    }
    times
}

fn cpu_seconds() -> f64 {
    // SAFETY: the struct has only numbers, and getrusage fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Run one order and print its figures.
async fn run(manager: &LockManager, order: Order, number: usize) {
    let order = Arc::new(order);
    let line = Arc::new(Barrier::new(order.callers + 1));
    let callers: Vec<_> = (0..order.callers)
        .map(|i| {
            let prefix = format!("bench:{}:{number}:{i}:", std::process::id());
            tokio::spawn(call(manager.clone(), order.clone(), prefix, line.clone()))
        })
        .collect();
    let cpu = cpu_seconds();
    line.wait().await;
    let begin = Instant::now();
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await.unwrap_or_else(|error| fail(&error.to_string())));
    }
    let seconds = begin.elapsed().as_secs_f64();
    let cpu = cpu_seconds() - cpu;
    times.sort();
    let count = times.len();
    let microseconds = |index: usize| times[index].as_secs_f64() * 1e6;
    println!(
        "{{\"mode\":\"{}\",\"width\":{},\"cycles\":{count},\"seconds\":{seconds:.6},\"p50_us\":{:.2},\
         \"p99_us\":{:.2},\"cycles_per_s\":{:.1},\"cpu_s\":{cpu:.6},\"failed\":0}}",
        order.mode,
        order.callers,
        microseconds(count / 2),
        microseconds(count * 99 / 100),
        count as f64 / seconds,
    );
}

/// The command line.
#[derive(Default)]
struct Options {
    callers: usize,
    seconds: f64,
    one_thread: bool,
    from_stdin: bool,
    masters: Vec<String>,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Options {
        let mut made = Options { callers: 1, seconds: 2.0, ..Options::default() };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--callers" => made.callers = number(&words.next().unwrap_or_default()),
                "--seconds" => made.seconds = number(&words.next().unwrap_or_default()),
                "--one-thread" => made.one_thread = true,
                "--stdin" => made.from_stdin = true,
                master if master.contains("://") => made.masters.push(word),
                master => made.masters.push(format!("redis://{master}")),
            }
        }
        if made.masters.is_empty() {
            fail("usage: locks [--callers 1] [--seconds 2] [--one-thread] [--stdin] MASTER...");
        }
        made
    }
}

async fn serve(options: Options) {
    let mut manager = LockManager::new(options.masters);
    // One attempt: a cycle that must wait for a retry ends the program.
    manager.set_retry(1, Duration::from_millis(1));
    if !options.from_stdin {
        let order =
            Order { mode: "tasks".into(), callers: options.callers, cycles: 0, seconds: options.seconds };
        return run(&manager, order, 1).await;
    }
    let mut lines = BufReader::new(stdin()).lines();
    let mut count = 0;
    while let Ok(Some(line)) = lines.next_line().await {
        count += 1;
        run(&manager, Order::parse(&line), count).await;
    }
}

fn main() {
    let options = Options::parse(std::env::args().skip(1));
    let mut runtime = if options.one_thread {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    match runtime.enable_all().build() {
        Ok(runtime) => runtime.block_on(serve(options)),
        Err(error) => fail(&error.to_string()),
    }
}
