package main

import (
	"context"
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNeverEmpty(t *testing.T) {
	errDown := errors.New("connection refused")
	first := []*metav1.APIResourceList{{GroupVersion: "v1"}}
	second := []*metav1.APIResourceList{{GroupVersion: "v1"}, {GroupVersion: "apps/v1"}}
	answers := []struct {
		resources []*metav1.APIResourceList
		err       error
	}{
		{nil, errDown},    // The constructor waits.
		{first, nil},      // The constructor returns.
		{nil, errDown},    // The API server was stopped.
		{second, errDown}, // One API group failed.
	}
	discover, err := neverEmpty(t.Context(), func() ([]*metav1.APIResourceList, error) {
		answer := answers[0]
		answers = answers[1:]
		return answer.resources, answer.err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]*metav1.APIResourceList{first, second} {
		if got, err := discover(); !slices.Equal(got, want) || !errors.Is(err, errDown) {
			t.Errorf("discover() = %v, %v, want %v, %v", got, err, want, errDown)
		}
	}
}

func TestNeverEmpty_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := neverEmpty(ctx, func() ([]*metav1.APIResourceList, error) {
		cancel()
		return nil, nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
