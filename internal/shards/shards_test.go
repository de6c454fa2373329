package shards_test

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/shards"
)

// The shards of these types must never change, because replicas of different releases have to agree.
func TestOf_IsTheSameInEveryRelease(t *testing.T) {
	for gr, want := range map[schema.GroupResource]map[int]int{
		{Group: "", Resource: "configmaps"}:                    {1: 0, 2: 1, 8: 3, 64: 27, 256: 91},
		{Group: "apps", Resource: "deployments"}:               {1: 0, 2: 1, 8: 3, 64: 11, 256: 11},
		{Group: "example.com", Resource: "widgets"}:            {1: 0, 2: 1, 8: 7, 64: 63, 256: 127},
		{Group: "platform.example.com", Resource: "databases"}: {1: 0, 2: 0, 8: 4, 64: 28, 256: 28},
	} {
		for count, index := range want {
			if got := shards.Of(gr, count); got != index {
				t.Errorf("shard of %s among %d: %d, want %d", gr, count, got, index)
			}
		}
	}
}

func TestOf_DividesTypesEvenly(t *testing.T) {
	const types, count = 10_000, 64
	var sizes [count]int
	for i := range types {
		sizes[shards.Of(schema.GroupResource{Group: "example.com", Resource: fmt.Sprintf("type%d", i)}, count)]++
	}
	for index, size := range sizes { // the mean is 156; the limits are more than four standard deviations away
		if size < 100 || size > 215 {
			t.Errorf("shard %d of %d has %d of %d types", index, count, size, types)
		}
	}
}

func TestContains_EachTypeIsInOneShard(t *testing.T) {
	gr := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	for _, count := range []int{1, 2, 8, shards.Max} {
		found := 0
		for index := range count {
			if (shards.Shard{Index: index, Count: count}).Contains(gr) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("with %d shards, the type is in %d of them", count, found)
		}
	}
}

func TestFrom_IsWholeWithoutAShard(t *testing.T) {
	ctx := context.Background()
	if got := shards.From(ctx); got != shards.Whole {
		t.Errorf("got %v", got)
	}
	want := shards.Shard{Index: 3, Count: 8}
	if got := shards.From(shards.With(ctx, want)); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Children are labelled with the bucket, so it must never change either.
func TestBucket_DeterminesTheShard(t *testing.T) {
	for i := range 1000 {
		gr := schema.GroupResource{Group: "example.com", Resource: fmt.Sprintf("type%d", i)}
		bucket, err := strconv.Atoi(shards.Bucket(gr))
		if err != nil {
			t.Fatal(err)
		}
		for count := 1; count <= shards.Max; count *= 2 {
			if got := shards.Of(gr, count); !shards.HasBuckets(count) || bucket%count != got {
				t.Errorf("%s is in bucket %d and, with %d shards, in shard %d", gr, bucket, count, got)
			}
		}
	}
	for _, count := range []int{0, 3, 12, 512} {
		if shards.HasBuckets(count) {
			t.Errorf("a layout with %d shards has buckets", count)
		}
	}
}

// Proxies usually accept URLs of up to 8 KiB.
func TestSelector_SelectsTheBucketsOfTheShardAndObjectsWithoutALabel(t *testing.T) {
	const label = "platform.example.com/bucket"
	for count := 1; count <= shards.Max; count *= 2 {
		index := count / 3
		text := shards.Shard{Index: index, Count: count}.Selector(label)
		if n := len(url.QueryEscape(text)); n > 1536 {
			t.Errorf("with %d shards, the selector needs %d bytes in a URL", count, n)
		}
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if !selector.Matches(labels.Set{"other": "1"}) {
			t.Errorf("with %d shards, an object without the label is not selected", count)
		}
		for bucket := range shards.Max {
			want := bucket%count == index
			if got := selector.Matches(labels.Set{label: strconv.Itoa(bucket)}); got != want {
				t.Errorf("with %d shards, bucket %d is selected: %t, want %t", count, bucket, got, want)
			}
		}
	}
}
