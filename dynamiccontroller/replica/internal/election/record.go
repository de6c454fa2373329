package election

import "time"

// Record is what a Lease contains. The zero value is that of a Lease that was emptied.
type Record struct {
	Holder      string        // the identity of the holder, or empty
	Duration    time.Duration // how long the Lease is held after Renewed
	Acquired    time.Time
	Renewed     time.Time
	Transitions int // how often the holder has changed
}

// releasedDuration is the duration in a Lease that was released.
const releasedDuration = time.Second

// held returns the record of a Lease that the holder acquires or renews at a time. Its two times always differ, because
// equal times mark a released Lease.
func (r Record) held(holder string, duration time.Duration, now time.Time) Record {
	next := Record{Holder: holder, Duration: duration, Acquired: now, Renewed: now, Transitions: r.Transitions}
	switch r.Holder {
	case holder:
		next.Acquired = r.Acquired
	default:
		next.Transitions++
	}
	if next.Acquired.Equal(next.Renewed) {
		next.Acquired = next.Acquired.Add(-time.Millisecond)
	}
	return next
}

// Released returns the record of a Lease that is released at a time.
func (r Record) Released(now time.Time) Record {
	return Record{Duration: releasedDuration, Acquired: now, Renewed: now, Transitions: r.Transitions}
}

// IsReleased reports whether the holder has released the Lease in the way that client-go and [Record.Released] do.
// Otherwise, somebody may have emptied the Lease while its holder was leading. A Lease that is held has a duration of
// more than a second, and two different times.
func (r Record) IsReleased() bool {
	return r.Holder == "" && r.Duration == releasedDuration && r.Renewed.Equal(r.Acquired)
}

// blocks returns how long a record that is not released must be observed without a change before its holder cannot lead
// any more. The holder can have been configured for a longer duration. That of the previous holder of an emptied Lease
// is in former.
func (r Record) blocks(configured, former time.Duration) time.Duration {
	if r.Holder == "" {
		return max(configured, former)
	}
	return max(configured, r.Duration)
}

// equal reports whether two records are those of the same write.
func (r Record) equal(other Record) bool {
	return r.Holder == other.Holder && r.Duration == other.Duration && r.Transitions == other.Transitions &&
		r.Acquired.Equal(other.Acquired) && r.Renewed.Equal(other.Renewed)
}

// Instant is a reading of both clocks. The monotonic clock stops while a virtual machine is suspended, and the wall
// clock can be set. A deadline must therefore use the clock that has advanced further.
type Instant struct{ Mono, Wall time.Time }

// Since returns the time that has passed since another instant, by the clock that has advanced further.
func (i Instant) Since(earlier Instant) time.Duration {
	return max(i.Mono.Sub(earlier.Mono), i.Wall.Sub(earlier.Wall))
}

// skewDivisor sets how early a term ends: LeaseDuration / skewDivisor before other replicas can lead. The clock rates
// of two machines can differ by one part in skewDivisor. NTP changes a clock's rate by at most 0.05%, so most of the
// time is left for delays between checking the clocks and sending a write, such as scheduling and garbage collection.
const skewDivisor = 10

// Validity returns how long a confirmed write of the Lease is valid, counted from the time at which it was sent. During
// that time, the replica is certain that it holds the Lease.
func Validity(duration time.Duration) time.Duration { return duration - duration/skewDivisor }
