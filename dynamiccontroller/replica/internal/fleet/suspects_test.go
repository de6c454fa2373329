package fleet

import (
	"strings"
	"testing"
	"time"
)

// Each word is a step: a letter is a new holder of the Lease, which the previous one has lost by expiry, unless "-" has
// released it. "short" and "long" renew the Lease for some time, "back" lets the last leader appear again, and "wait" and
// "hold" pass the time after which a crash is counted, and for which a shard is first held back.
func TestSuspects(t *testing.T) {
	const d = shardLeaseDuration
	for script, want := range map[string]bool{
		"a short b wait b short c wait c short e wait":                              true,
		"a short b wait b short c wait":                                             false, // two crashes
		"a short b wait b short c wait c short e":                                   false, // may still appear again
		"a short b back wait b short c back wait c short e wait":                    false, // an outage
		"a short b wait b short c wait c long e wait":                               false, // works for long enough
		"a short b wait b short c wait c long e wait e short f wait f short g wait": false, // and forgives the others
		"a short b wait b short c wait c short - e wait e short f wait":             true,  // a release does not count
		"a short b wait b short c wait c short - e wait":                            false,
		"a short b wait b short c wait c long - e wait e short f wait":              false, // a release after a while forgives
		"a short b wait b short c wait c short e wait hold":                         false, // is led again
		"a short b wait b short c wait c short e wait e short f wait hold":          true,  // is held back for longer
		"a short b wait b short c wait c short e wait e short f wait hold hold":     false,
		"a short relist b wait b short relist c wait c short relist e wait":         false, // a release that was not observed
		"a short b wait b short c wait forget c short e wait":                       false, // another number of shards
	} {
		t.Run(script, func(t *testing.T) {
			s, now, seen := suspects{leaseDuration: d, shards: map[int]suspect{}}, time.Now(), map[string]time.Time{}
			last := func(identity string) time.Time { return seen[identity] }
			holder, skipped := "", false
			renew := func(periods int) {
				for range periods * 4 {
					now = now.Add(d / 4)
					s.observe(3, holder, now)
				}
			}
			previous := ""
			for word := range strings.FieldsSeq(script) {
				switch word {
				case "short":
					renew(1)
				case "long":
					renew(suspectPeriods)
				case "wait":
					now = now.Add(d)
					s.held(now, last)
				case "hold":
					now = now.Add(suspectPeriods * d)
				case "back":
					now = now.Add(d / 2)
					seen[previous] = now
				case "relist":
					skipped = true
				case "forget":
					s.forget()
				case "-":
					s.observe(3, "", now)
					holder = ""
				default:
					if word != holder && holder != "" && !skipped {
						now = now.Add(d)
					}
					if skipped = false; word != holder {
						previous, holder = holder, word
					}
					s.observe(3, holder, now)
				}
			}
			if held := s.held(now, last); held[3] != want {
				t.Errorf("held back: %v", held)
			}
		})
	}
}
