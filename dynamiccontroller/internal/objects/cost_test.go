package objects

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// widget returns an object as an API server sends it. Its size is about 2.4 kB, of which managedFields take about a
// third.
func widget() []byte {
	return fmt.Appendf(nil, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"creationTimestamp":`+
		`"2026-01-02T03:04:05Z","generation":3,"labels":{"app.kubernetes.io/name":"shop"},"managedFields":[%s],`+
		`"name":"widget-4711","namespace":"team-a","resourceVersion":"123456","uid":"5f0f4b1e-9d5c-4f8e-a9c3-1f2e3d4c5b6a"},`+
		`"spec":{"items":[%s]}}`,
		strings.Repeat(`{"manager":"kubectl","fieldsV1":{"f:spec":{"f:items":{}}}},`, 12)+`{}`,
		strings.Repeat(`{"name":"an item","size":42,"tags":["a","b"]},`, 26)+`{}`)
}

func TestParse_AllocatesOnlyWhatTheRecordKeeps(t *testing.T) {
	data := widget()
	for projection, limit := range []float64{Keys: 2, Metadata: 3, Full: 3, Complete: 3} {
		got := testing.AllocsPerRun(100, func() {
			if _, err := Parse(data, Projection(projection), metav1.TypeMeta{}); err != nil {
				t.Fatal(err)
			}
		})
		if got > limit {
			t.Errorf("projection %d: %v allocations, want at most %v", projection, got, limit)
		}
	}
}

// Pods have all these fields.
func TestParse_DoesNotDecodeMetadataInTheUsualForm(t *testing.T) {
	for _, fields := range []string{
		`"generateName":"widget-"`, `"selfLink":"/widgets"`, `"finalizers":[]`, `"finalizers":["a", "b"]`,
		`"deletionTimestamp":"2026-01-02T03:04:05Z","deletionGracePeriodSeconds":30`,
		`"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"u","controller":true}, {"uid":"v"}]`,
	} {
		data := []byte(strings.Replace(string(widget()), `"generation":3`, fields, 1))
		got := testing.AllocsPerRun(100, func() {
			if _, err := Parse(data, Full, metav1.TypeMeta{}); err != nil {
				t.Fatal(err)
			}
		})
		if got > 3 {
			t.Errorf("%s: %v allocations", fields, got)
		}
	}
}

func TestParseProtobuf_DecodesFieldsOnTheStack(t *testing.T) {
	o := protobufWidget()
	o.CreationTimestamp = metav1.Unix(1e9, 0)
	o.OwnerReferences = []metav1.OwnerReference{{Kind: "K", Name: "n", UID: "u"}}
	data := marshal(t, o)
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ParseProtobuf(data, Metadata); err != nil {
				b.Fatal(err)
			}
		}
	})
	r := parseProtobuf(t, data, Metadata)
	if limit := int64(r.Size() + 40); result.AllocedBytesPerOp() > limit {
		t.Errorf("%d bytes are allocated, want at most %d", result.AllocedBytesPerOp(), limit)
	}
}

func TestRecord_ReadsHeaderAndLabelsWithoutAllocations(t *testing.T) {
	o := protobufWidget()
	for encoding, r := range map[string]*Record{
		"JSON": parse(t, string(widget()), Full), "protobuf": parseProtobuf(t, marshal(t, o), Metadata),
	} {
		t.Run(encoding, func(t *testing.T) { requireNoAllocations(t, r) })
	}
}

func requireNoAllocations(t *testing.T, r *Record) {
	selector, err := labels.Parse("app.kubernetes.io/name=shop,!missing,app.kubernetes.io/name notin (a,b)")
	if err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func(){
		"header":  func() { _, _, _, _, _ = r.Key(), r.GetName(), r.GetNamespace(), r.GetUID(), r.GetResourceVersion() },
		"labels":  func() { _ = r.Matches(selector) || failed(t) },
		"owners":  func() { _ = r.OwnerReferences() == nil || failed(t) },
		"deep":    func() { _ = r.DeepCopyObject() },
		"size":    func() { _ = r.Size() },
		"content": func() { _ = r.SameContent(r) || failed(t) },
	} {
		if got := testing.AllocsPerRun(100, read); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

func failed(t *testing.T) bool {
	t.Error("wrong result")
	return true
}

func TestRecord_OverheadIsSmall(t *testing.T) {
	t.Parallel()
	data := widget()
	full, metadata, keys := parse(t, string(data), Full), parse(t, string(data), Metadata), parse(t, string(data), Keys)
	t.Logf("size: full %d for %d bytes of data, metadata %d for %d bytes of data, keys %d",
		full.Size(), len(full.data), metadata.Size(), len(metadata.data), keys.Size())
	for _, r := range []*Record{full, metadata} {
		if overhead := r.Size() - allocated(len(r.data)); overhead > 160 {
			t.Errorf("projection %d: overhead of %d bytes", r.Projection(), overhead)
		}
	}
	if metadata.Size() > 500 || keys.Size() > 160 {
		t.Errorf("the record uses %d bytes with Metadata and %d bytes with Keys", metadata.Size(), keys.Size())
	}
}

// A record must not keep the buffer of a stream that holds other objects.
func TestRecord_DoesNotKeepTheReceivedBytes(t *testing.T) {
	t.Parallel()
	data := widget()
	r, err := Parse(data, Complete, metav1.TypeMeta{})
	if err != nil {
		t.Fatal(err)
	}
	want := string(data)
	for i := range data {
		data[i] = 'x'
	}
	if r.data != want || r.Key() != "team-a/widget-4711" {
		t.Errorf("the record changed when the received bytes were overwritten")
	}
}

func TestRecord_CanBeReadConcurrently(t *testing.T) {
	t.Parallel()
	r, selector := parse(t, string(widget()), Complete), labels.SelectorFromSet(labels.Set{"a": "b"})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				readAll(r, selector)
			}
		})
	}
	wg.Wait()
}
