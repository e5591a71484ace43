package sluice;

import com.sun.management.OperatingSystemMXBean;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecutionContext;

/** The gates of a session. Their variables are guarded by the lock of this object. */
public class InputGates {

    final Map present = new LinkedHashMap();
    final Map waiting = new LinkedHashMap();
    final Map queued = new LinkedHashMap();
    final OperatingSystemMXBean machine = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    long created = 0L;
    boolean closed = false;
    int batches = 0;
    double busy = 0.0;
    long stall = 0L;
    int running = 0;
    long changed = System.nanoTime();
    long sampled = changed;

    /** Sets how many batches run at a time, 0 for no limit; with how many idle cores, and after how many milliseconds, one more may. */
    public synchronized void limit(int batches, double idle, long stall) {
        this.batches = batches;
        this.busy = 1.0 - idle / machine.getAvailableProcessors();
        this.stall = stall * 1000000L;
    }

    /** The milliseconds after which a queued gate is to ask again, unless it is notified before; 0 if it may let its batch begin. */
    long delay(InputGate gate) {
        if (gate.hurried || !gate.execution.isActive() || batches == 0) {
            return 0L;
        }
        if (queued.values().iterator().next() != gate) {
            return 1000L;
        }
        return running < batches || System.nanoTime() - changed > stall || hasIdleCores() ? 0L : 20L;
    }

    /** The load is that since the last call, so one after a short or a long time says nothing. */
    boolean hasIdleCores() {
        long since = System.nanoTime() - sampled;
        if (since < 50000000L) {
            return false;
        }
        sampled += since;
        return machine.getSystemCpuLoad() < busy && since < 200000000L;
    }

    /** A batch begins or has ended. */
    void changed() {
        changed = System.nanoTime();
        notifyAll();
    }

    public synchronized InputGate gate(MicroBatchExecution execution, long interval, long longest, boolean repeats) {
        created += 1L;
        InputGate gate = new InputGate(this, created, execution, interval, longest, repeats);
        present.put(Long.valueOf(created), gate);
        return gate;
    }

    public synchronized void open(String ids) {
        String[] each = ids.split(",");
        for (int i = 0; i < each.length; i++) {
            Object gate = present.get(Long.valueOf(each[i]));
            if (gate != null) {
                ((InputGate) gate).opened = true;
            }
        }
        notifyAll();
    }

    /** Waits until a gate waits. Returns the waiting gates that are not open, null after close. */
    public synchronized String waiting() throws InterruptedException {
        while (!closed && waiting.isEmpty()) {
            wait();
        }
        if (closed) {
            return null;
        }
        StringBuilder found = new StringBuilder();
        Iterator gates = waiting.values().iterator();
        while (gates.hasNext()) {
            InputGate gate = (InputGate) gates.next();
            if (!gate.opened) {
                found.append(gate.id).append(gate.positions).append((char) 10);
            }
        }
        return found.toString();
    }

    public synchronized void close() {
        closed = true;
        notifyAll();
    }

    public static class InputGate implements MicroBatchStream {

        final InputGates gates;
        final long id;
        final MicroBatchExecution execution;
        final long interval;
        final long longest;
        final boolean repeats;
        String positions = "";
        boolean opened = false;
        boolean hurried = false;
        boolean asked = false;
        boolean counted = false;
        long batch = -1L;
        long passed = 0L;
        long pace = 0L;
        long queued = 0L;

        InputGate(InputGates gates, long id, MicroBatchExecution execution, long interval, long longest, boolean repeats) {
            this.gates = gates;
            this.id = id;
            this.execution = execution;
            this.interval = interval * 1000000L;
            this.longest = longest * 1000000L;
            this.repeats = repeats;
        }

        public long id() {
            return id;
        }

        /** Lets the current call pass immediately, or the next one. */
        public void hurry() {
            synchronized (gates) {
                hurried = true;
                ended();
                gates.notifyAll();
            }
        }

        /** The batch of the query has ended, or does not count any more. */
        void ended() {
            if (counted) {
                counted = false;
                gates.running -= 1;
                gates.changed();
            }
        }

        void queue() throws InterruptedException {
            gates.queued.put(Long.valueOf(id), this);
            try {
                long delay = gates.delay(this);
                while (delay > 0L) {
                    gates.wait(delay);
                    delay = gates.delay(this);
                }
            } finally {
                gates.queued.remove(Long.valueOf(id));
                gates.changed();
            }
            if (!hurried) {
                counted = true;
                gates.running += 1;
            }
        }

        /** Sets a shortest time, in milliseconds, from one call that passes to the next, beside the interval. */
        public void pace(long shortest) {
            synchronized (gates) {
                pace = shortest * 1000000L;
                gates.notifyAll();
            }
        }

        public Offset latestOffset() {
            StreamExecutionContext context = execution.getLatestExecutionContext();
            boolean follows = repeats && context.batchId() != batch;
            batch = context.batchId();
            String read = follows ? "" : positionsOf(context);
            long began = System.nanoTime();
            try {
                await(began, follows, read);
            } catch (InterruptedException e) {
                throw new UncheckedIOException(new InterruptedIOException("interrupted while waiting for input"));
            }
            long waited = (System.nanoTime() - began) / 1000000L;
            if (waited > 0L) {
                context.startTrigger();
                context.reportTimeTaken("latestOffset", -waited);
                context.reportTimeTaken("triggerExecution", -waited);
            }
            context.reportTimeTaken("waitForCore", queued);
            return null;
        }

        void await(long began, boolean follows, String read) throws InterruptedException {
            synchronized (gates) {
                ended();
                positions = read;
                try {
                    long left = left(began, follows);
                    while (left > 0L) {
                        if (!follows) {
                            gates.waiting.put(Long.valueOf(id), this);
                            if (gates.waiting.size() == 1) {
                                gates.notifyAll();
                            }
                        }
                        gates.wait(left / 1000000L + 1L);
                        left = left(began, follows);
                    }
                } finally {
                    gates.waiting.remove(Long.valueOf(id));
                }
                long inputs = System.nanoTime();
                queue();
                queued = (System.nanoTime() - inputs) / 1000000L;
                opened = false;
                hurried = false;
                asked = true;
                passed = System.nanoTime();
            }
        }

        /** The longest time, in nanoseconds, until the call passes. */
        long left(long began, boolean follows) {
            if (!asked || hurried || !execution.isActive()) {
                return 0L;
            }
            long now = System.nanoTime();
            long allowed = Math.max(interval, pace) - (now - passed);
            if (allowed > 0L) {
                return allowed;
            }
            return opened || follows ? 0L : longest - (now - (repeats ? began : passed));
        }

        /** The text of each offset up to which the query has read, each after a tab. */
        static String positionsOf(StreamExecutionContext context) {
            StringBuilder found = new StringBuilder();
            scala.collection.Iterator offsets = context.startOffsets().valuesIterator();
            while (offsets.hasNext()) {
                String offset = ((Offset) offsets.next()).json();
                found.append((char) 9).append(offset.replace((char) 9, (char) 32).replace((char) 10, (char) 32));
            }
            return found.toString();
        }

        public Offset initialOffset() {
            throw new UnsupportedOperationException();
        }

        public Offset deserializeOffset(String json) {
            throw new UnsupportedOperationException();
        }

        public void commit(Offset end) {
        }

        public void stop() {
            synchronized (gates) {
                gates.present.remove(Long.valueOf(id));
                ended();
            }
        }

        public InputPartition[] planInputPartitions(Offset start, Offset end) {
            throw new UnsupportedOperationException();
        }

        public PartitionReaderFactory createReaderFactory() {
            throw new UnsupportedOperationException();
        }

        public String toString() {
            return "the gate that waits for input";
        }
    }
}
