package listwatch

import (
	"context"
	"fmt"
	"hash/maphash"
	"time"
)

const (
	// fewItems is the number of items from which a page is followed by the next one at once. After the first page in a row
	// with fewer items, the pages are delayed, at first by firstPageDelay, at last by longestPageDelay. An API server
	// fills all pages except the last one.
	fewItems          = 10
	firstPageDelay    = 10 * time.Millisecond
	longestPageDelay  = 100 * time.Millisecond
	maxPageDoublings  = 10
	itemsOfLargeLists = 10_000_000
)

// maxPages is the number of pages after which a list is malformed. It is a variable for tests.
var maxPages = itemsOfLargeLists / pageSize

// pages are the pages of a list that have been received.
type pages struct {
	seed maphash.Seed
	seen map[uint64]bool // hashes of the continue tokens
	few  int             // pages in a row with few items
}

func newPages() *pages { return &pages{seed: maphash.MakeSeed(), seen: map[uint64]bool{}} }

// next waits until the page after a continue token can be requested. It returns an error if the list cannot end.
func (p *pages) next(ctx context.Context, token string, items int64) error {
	hash := maphash.String(p.seed, token)
	switch {
	case p.seen[hash]:
		return fmt.Errorf("%w: the list has repeated the continue token %.40q", ErrMalformed, token)
	case len(p.seen)+1 >= maxPages:
		return fmt.Errorf("%w: the list has more than %d pages", ErrMalformed, maxPages)
	}
	p.seen[hash] = true
	if items >= fewItems {
		p.few = 0
		return nil
	}
	if p.few++; p.few == 1 {
		return nil
	}
	timer := time.NewTimer(min(firstPageDelay<<min(p.few-2, maxPageDoublings), longestPageDelay))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
