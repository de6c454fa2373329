package identity

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func TestAnswers_AgeIsMeasuredFromTheRequest(t *testing.T) {
	m, _, clock := newFake(t, Options{})
	ask := func(context.Context) (bool, error) {
		clock.SetTime(clock.Now().Add(40 * time.Second)) // the API server is slow
		return true, nil
	}
	asked := 0
	again := func(context.Context) (bool, error) { asked++; return false, nil }
	if _, err := m.access.get(t.Context(), accessQuestion{}, ask); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(20 * time.Second))
	if allowed, err := m.access.get(t.Context(), accessQuestion{}, again); err != nil || allowed || asked != 1 {
		t.Errorf("got %t, %v and %d requests after 60 s, want one request", allowed, err, asked)
	}
}

func TestAnswers_AreBounded(t *testing.T) {
	m, _, _ := newFake(t, Options{})
	ask := func(context.Context) (bool, error) { return true, nil }
	for i := range maxAnswers + 10 {
		if _, err := m.access.get(t.Context(), accessQuestion{namespace: fmt.Sprint(i)}, ask); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.access.cache.Len(); got != maxAnswers {
		t.Errorf("got %d cached answers, want %d", got, maxAnswers)
	}
}
