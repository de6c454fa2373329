package fleet

import (
	"strings"
	"testing"
	"time"
)

// Each word is a step: a letter is a new holder of the Lease, which the previous one has lost by expiry, unless "-" has
// released it. "short" and "long" renew the Lease for some time, "back" lets the last leader appear again, and "wait"
// and "hold" pass the time after which a crash is counted, and for which a shard is first held back. "other" is the
// crash of a member that does not lead the shard.
func TestSuspects(t *testing.T) {
	for script, want := range map[string]bool{
		"a short b wait b short c wait c short e wait":                              true,
		"a short b wait b short c wait":                                             false, // two crashes
		"a short b wait b short c wait c short e":                                   false, // may still appear again
		"a short b back wait b short c back wait c short e wait":                    false, // an outage
		"a short b wait b short c wait c long e wait":                               false, // works for long enough
		"a short b wait b short c wait c long e wait e short f wait f short g wait": false, // and forgives the others
		"a short b wait b short c wait c short - e wait e short f wait":             true,  // a release does not count
		"a short b wait b short c wait c short - e wait":                            false,
		"a short b wait b short c wait c long - e wait e short f wait":              false, // a later release forgives
		"a short b wait b short c wait c short e wait hold":                         false, // is led again
		"a short b wait b short c wait c short e wait e short f wait hold":          true,  // is held back for longer
		"a short b wait b short c wait c short e wait e short f wait hold hold":     false,
		"a short relist b wait b short relist c wait c short relist e wait":         false, // a release that was not observed
		"a short b wait b short c wait forget c short e wait":                       false, // another number of shards
		"a short b wait b short other c wait c short e wait":                        true,
		"a short b wait b short other c wait other c short e wait":                  false, // others crash, too
		"other other a short b wait b short c wait c short e wait":                  true,  // before
	} {
		t.Run(script, func(t *testing.T) {
			p := suspectScript{
				s: suspects{leaseDuration: shardLeaseDuration, shards: map[int]suspect{}}, now: time.Now(),
				seen: map[string]time.Time{},
			}
			for word := range strings.FieldsSeq(script) {
				p.play(word)
			}
			if held := p.s.held(p.now, p.last); held[3] != want {
				t.Errorf("held back: %v", held)
			}
		})
	}
}

// suspectScript plays a script.
type suspectScript struct {
	s                suspects
	now              time.Time
	seen             map[string]time.Time
	holder, previous string
	skipped          bool // the next change follows a release that was not observed
}

func (p *suspectScript) last(identity string) time.Time { return p.seen[identity] }

func (p *suspectScript) play(word string) {
	const d = shardLeaseDuration
	switch word {
	case "short":
		p.renew(1)
	case "long":
		p.renew(suspectPeriods)
	case "wait":
		p.s.end(p.now)
		p.now = p.now.Add(d)
		p.s.held(p.now, p.last)
	case "hold":
		p.now = p.now.Add(suspectPeriods * d)
	case "back":
		p.now = p.now.Add(d / 2)
		p.seen[p.previous] = p.now
	case "relist":
		p.skipped = true
	case "forget":
		p.s.forget()
	case "other":
		p.s.end(p.now)
	case "-":
		p.s.observe(3, "", p.now)
		p.holder = ""
	default:
		p.acquire(word)
	}
}

// renew renews the Lease for some time, in multiples of LeaseDuration.
func (p *suspectScript) renew(periods int) {
	for range periods * 4 {
		p.now = p.now.Add(shardLeaseDuration / 4)
		p.s.observe(3, p.holder, p.now)
	}
}

func (p *suspectScript) acquire(holder string) {
	if holder != p.holder {
		if p.holder != "" && !p.skipped {
			p.now = p.now.Add(shardLeaseDuration)
		}
		p.previous, p.holder = p.holder, holder
	}
	p.skipped = false
	p.s.observe(3, holder, p.now)
}
