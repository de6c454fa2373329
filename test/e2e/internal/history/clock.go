package history

import "time"

// Time is nanoseconds of a clock that all processes of a machine share.
type Time int64

// Add returns the time d later.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns how much later t is than u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }
