import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Runs the lock client of Java for `python -m bench --languages`. ../README.md describes the command line. */
public final class Locks {
    private static final long TTL_SECONDS = 10;
    private static final long PID = ProcessHandle.current().pid();

    private final List<RedissonClient> clients = new ArrayList<>();
    private int runs;

    /** One run: so many callers, for a number of seconds or of cycles. */
    private record Order(String mode, int callers, int cycles, double seconds) {
        /** Read "MODE AMOUNT [CALLERS]"; the amount is cycles as "2000", or seconds as "0.5s". */
        static Order parse(String line) {
            String[] words = line.strip().split(" +");
            if (words.length < 2 || words.length > 3 || !List.of("cycle", "threads", "tasks").contains(words[0])) {
                throw fail("expected cycle, threads or tasks, an amount, and the callers; got " + line);
            }
            boolean timed = words[1].endsWith("s");
            return new Order(
                words[0],
                words.length == 3 ? Integer.parseInt(words[2]) : 1,
                timed ? 0 : Integer.parseInt(words[1]),
                timed ? Double.parseDouble(words[1].substring(0, words[1].length() - 1)) : 0);
        }

        boolean goesOn(int done, long beginNs) {
            return cycles > 0 ? done < Math.max(1, cycles / callers) : System.nanoTime() - beginNs < seconds * 1e9;
        }
    }

    /** The times of one caller's cycles in nanoseconds. */
    private static final class Times {
        private long[] values = new long[1024];
        private int count;

        void add(long value) {
            if (count == values.length) {
                values = Arrays.copyOf(values, 2 * count);
            }
            values[count++] = value;
        }
    }

    private static RuntimeException fail(String reason) {
        System.err.println(reason);
        System.exit(1);
        return new IllegalStateException(reason);
    }

    /** The lock of one name: on one master an RLock, on several a RedissonRedLock of one RLock each. */
    private RLock lock(String name) {
        if (clients.size() == 1) {
            return clients.get(0).getLock(name);
        }
        return new RedissonRedLock(clients.stream().map(client -> client.getLock(name)).toArray(RLock[]::new));
    }

    private void cycle(String name) throws InterruptedException {
        RLock lock = lock(name);
        if (!lock.tryLock(0, TTL_SECONDS, TimeUnit.SECONDS)) {
            throw fail(name + " was not granted");
        }
        lock.unlock();
    }

    /** The same without blocking; the owner of the lock is a number, not a thread. */
    private CompletionStage<Void> cycleAsync(String name, long owner) {
        RLock lock = lock(name);
        return lock.tryLockAsync(0, TTL_SECONDS, TimeUnit.SECONDS, owner).thenCompose(granted -> {
            if (!granted) {
                throw fail(name + " was not granted");
            }
            return lock.unlockAsync(owner);
        });
    }

    private Times call(Order order, String prefix, long beginNs) throws InterruptedException {
        Times times = new Times();
        for (long before = System.nanoTime(); order.goesOn(times.count, beginNs); ) {
            cycle(prefix + times.count);
            long after = System.nanoTime();
            times.add(after - before);
            before = after;
        }
        return times;
    }

    private void callAsync(Order order, String prefix, long owner, long beginNs, Times times, CountDownLatch done) {
        if (!order.goesOn(times.count, beginNs)) {
            done.countDown();
            return;
        }
        long before = System.nanoTime();
        cycleAsync(prefix + times.count, owner).whenComplete((nothing, error) -> {
            if (error != null) {
                throw fail(error.toString());
            }
            times.add(System.nanoTime() - before);
            callAsync(order, prefix, owner, beginNs, times, done);
        });
    }

    private Times[] runThreads(Order order, long[] beginNs) throws InterruptedException {
        Times[] results = new Times[order.callers];
        CountDownLatch ready = new CountDownLatch(order.callers);
        CountDownLatch start = new CountDownLatch(1);
        Thread[] threads = new Thread[order.callers];
        for (int i = 0; i < order.callers; i++) {
            int caller = i;
            threads[i] = new Thread(() -> {
                try {
                    ready.countDown();
                    start.await();
                    results[caller] = call(order, prefix(caller), beginNs[0]);
                } catch (Exception error) {
                    fail(error.toString());
                }
            });
            threads[i].start();
        }
        ready.await();
        beginNs[0] = System.nanoTime();
        start.countDown();
        for (Thread thread : threads) {
            thread.join();
        }
        return results;
    }

    private Times[] runTasks(Order order, long[] beginNs) throws InterruptedException {
        Times[] results = new Times[order.callers];
        CountDownLatch done = new CountDownLatch(order.callers);
        beginNs[0] = System.nanoTime();
        for (int caller = 0; caller < order.callers; caller++) {
            results[caller] = new Times();
            callAsync(order, prefix(caller), caller + 1, beginNs[0], results[caller], done);
        }
        done.await();
        return results;
    }

    private String prefix(int caller) {
        return "bench:" + PID + ":" + runs + ":" + caller + ":";
    }

    private static double cpuSeconds() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    private void run(Order order) throws InterruptedException {
        runs++;
        long[] beginNs = new long[1];
        double cpu = cpuSeconds();
        Times[] results = order.mode.equals("tasks") ? runTasks(order, beginNs) : runThreads(order, beginNs);
        double seconds = (System.nanoTime() - beginNs[0]) / 1e9;
        cpu = cpuSeconds() - cpu;
        long[] all = Arrays.stream(results).flatMapToLong(times -> Arrays.stream(times.values, 0, times.count))
            .sorted().toArray();
        System.out.println(String.format(
            Locale.ROOT,
            "{\"mode\":\"%s\",\"width\":%d,\"cycles\":%d,\"seconds\":%.6f,\"p50_us\":%.2f,\"p99_us\":%.2f,"
                + "\"cycles_per_s\":%.1f,\"cpu_s\":%.6f,\"failed\":0}",
            order.mode, order.callers, all.length, seconds, all[all.length / 2] / 1e3,
            all[(int) (all.length * 99L / 100)] / 1e3, all.length / seconds, cpu));
    }

    private void connect(String master) {
        Config config = new Config();
        // With the default of 32 for each master, many callers on five masters were slower.
        config.setNettyThreads(Runtime.getRuntime().availableProcessors());
        config.useSingleServer().setAddress(master.contains("://") ? master : "redis://" + master);
        clients.add(Redisson.create(config));
    }

    public static void main(String[] words) throws Exception {
        Locks locks = new Locks();
        int callers = 1;
        double seconds = 2;
        String mode = "threads";
        boolean fromStdin = false;
        for (int i = 0; i < words.length; i++) {
            switch (words[i]) {
                case "--callers" -> callers = Integer.parseInt(words[++i]);
                case "--seconds" -> seconds = Double.parseDouble(words[++i]);
                case "--mode" -> mode = words[++i];
                case "--stdin" -> fromStdin = true;
                default -> locks.connect(words[i]);
            }
        }
        if (locks.clients.isEmpty()) {
            throw fail("usage: Locks [--mode threads] [--callers 1] [--seconds 2] [--stdin] MASTER...");
        }
        if (fromStdin) {
            var lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                locks.run(Order.parse(line));
            }
        } else {
            locks.run(new Order(mode, callers, 0, seconds));
        }
        // Without this, the client's threads keep the process.
        System.exit(0);
    }
}
