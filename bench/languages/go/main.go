// Runs the lock clients of Go for `python -m bench --languages`. ../README.md describes the command line.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// An order is one run: so many callers, for a number of seconds or of cycles.
type order struct {
	mode    string
	callers int
	cycles  int
	seconds float64
}

// An answer has the figures of one run.
type answer struct {
	Mode         string  `json:"mode"`
	Width        int     `json:"width"`
	Cycles       int     `json:"cycles"`
	Seconds      float64 `json:"seconds"`
	P50          float64 `json:"p50_us"`
	P99          float64 `json:"p99_us"`
	CyclesPerSec float64 `json:"cycles_per_s"`
	CPU          float64 `json:"cpu_s"`
	Failed       int     `json:"failed"`
}

var runs int

func die(format string, values ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
	os.Exit(1)
}

// parse reads "MODE AMOUNT [CALLERS]"; the amount is cycles as "2000", or seconds as "0.5s".
func parse(line string) order {
	words := strings.Fields(line)
	if len(words) < 2 || len(words) > 3 || (words[0] != "cycle" && words[0] != "tasks") {
		die("expected cycle or tasks, an amount, and the callers; got %q", line)
	}
	made := order{mode: words[0], callers: 1}
	var err error
	if seconds, found := strings.CutSuffix(words[1], "s"); found {
		made.seconds, err = strconv.ParseFloat(seconds, 64)
	} else {
		made.cycles, err = strconv.Atoi(words[1])
	}
	if err == nil && len(words) == 3 {
		made.callers, err = strconv.Atoi(words[2])
	}
	if err != nil {
		die("%v in %q", err, line)
	}
	return made
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		die("getrusage: %v", err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// call runs one caller to the end of the order, with a new name for each cycle, and returns the time of each cycle.
func (o order) call(run cycle, prefix string, begin time.Time) []time.Duration {
	var times []time.Duration
	most := max(1, o.cycles/o.callers)
	for before := time.Now(); o.cycles > 0 || before.Sub(begin).Seconds() < o.seconds; {
		if o.cycles > 0 && len(times) == most {
			break
		}
		if err := run(prefix + strconv.Itoa(len(times))); err != nil {
			die("%v", err)
		}
		after := time.Now()
		times = append(times, after.Sub(before))
		before = after
	}
	return times
}

func (o order) run(run cycle) answer {
	runs++
	results := make([][]time.Duration, o.callers)
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	var begin time.Time
	for i := range o.callers {
		ready.Add(1)
		done.Go(func() {
			prefix := fmt.Sprintf("bench:%d:%d:%d:", os.Getpid(), runs, i)
			ready.Done()
			<-start
			results[i] = o.call(run, prefix, begin)
		})
	}
	ready.Wait()
	cpu := cpuSeconds()
	begin = time.Now()
	close(start)
	done.Wait()
	seconds := time.Since(begin).Seconds()
	cpu = cpuSeconds() - cpu
	times := slices.Concat(results...)
	slices.Sort(times)
	count := len(times)
	return answer{
		Mode: o.mode, Width: o.callers, Cycles: count, Seconds: seconds,
		P50: times[count/2].Seconds() * 1e6, P99: times[count*99/100].Seconds() * 1e6,
		CyclesPerSec: float64(count) / seconds, CPU: cpu,
	}
}

func main() {
	name := flag.String("client", "redsync-goredis", "redsync-goredis, redsync-rueidis or rueidislock")
	callers := flag.Int("callers", 1, "callers at once")
	seconds := flag.Float64("seconds", 2, "length of the run")
	stdin := flag.Bool("stdin", false, "read orders from stdin")
	flag.Parse()
	masters := make([]string, flag.NArg())
	for i, master := range flag.Args() {
		address, _, _ := strings.Cut(strings.TrimPrefix(master, "redis://"), "/")
		masters[i] = address
	}
	maker := clients[*name]
	if maker == nil || len(masters) == 0 {
		die("usage: locks [--client NAME] [--callers 1] [--seconds 2] [--stdin] MASTER...")
	}
	run, err := maker(masters, *callers)
	if err != nil {
		die("%v", err)
	}
	answers := json.NewEncoder(os.Stdout)
	if !*stdin {
		answers.Encode(order{mode: "tasks", callers: *callers, seconds: *seconds}.run(run))
		return
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answers.Encode(parse(lines.Text()).run(run))
	}
}
