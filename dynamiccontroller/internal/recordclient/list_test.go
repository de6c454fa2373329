package recordclient_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

const (
	listType = `"apiVersion":"example.com/v1","kind":"WidgetList"`
	listMeta = `"metadata":{"resourceVersion":"42","continue":"next","remainingItemCount":3}`
)

// TestList_MatchesTheDynamicClient compares the items of a list with those that the dynamic client returns, apart from
// their order.
func TestList_MatchesTheDynamicClient(t *testing.T) {
	items := `"items":[` + widget("one") + ",\n" + widget("two") + `]`
	const podItems = `"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]`
	for name, fields := range map[string][]string{
		"API server's order":          {`"apiVersion":"example.com/v1"`, items, `"kind":"WidgetList"`, listMeta},
		"order of built-in types":     {`"kind":"WidgetList"`, `"apiVersion":"example.com/v1"`, listMeta, items},
		"metadata after the items":    {listType, items, listMeta},
		"type after the items":        {listMeta, items, listType},
		"unknown fields":              {`"a":{"items":[1,{"kind":"x"}]}`, listType, `"b":null`, listMeta, items, `"c":"d"`},
		"empty items":                 {listType, listMeta, `"items":[]`},
		"built-in type's items":       {`"apiVersion":"v1","kind":"PodList"`, listMeta, podItems},
		"built-in type's items first": {podItems, listMeta, `"kind":"PodList","apiVersion":"v1"`},
		"built-in type's kind last":   {`"apiVersion":"v1"`, podItems, listMeta, `"kind":"PodList"`},
		"one item without a kind": {
			`"apiVersion":"example.com/v1"`, `"items":[` + widget("one") + `,{"metadata":{"name":"a"}},` + widget("two") + `]`,
			`"kind":"WidgetList"`, listMeta,
		},
	} {
		t.Run(name, func(t *testing.T) {
			body := "{" + strings.Join(fields, ", ") + "}\n"
			got, err := list(t, iotest.OneByteReader(strings.NewReader(body)))
			if err != nil {
				t.Fatal(err)
			}
			want := &unstructured.UnstructuredList{}
			if _, _, err := unstructured.UnstructuredJSONScheme.Decode([]byte(body), nil, want); err != nil {
				t.Fatal(err)
			}
			wantMeta := metav1.ListMeta{ResourceVersion: "42", Continue: "next", RemainingItemCount: ptr.To[int64](3)}
			if diff := cmp.Diff(wantMeta, got.ListMeta); diff != "" {
				t.Error(diff)
			}
			contents := map[string]any{}
			for _, item := range got.Items {
				contents[item.GetName()] = decode(t, item)
			}
			if diff := cmp.Diff(contentsOf(want), contents); diff != "" || len(got.Items) != len(want.Items) {
				t.Error(diff)
			}
		})
	}
}

// contentsOf returns the content of each object, by its name.
func contentsOf(list *unstructured.UnstructuredList) map[string]any {
	all := map[string]any{}
	for _, item := range list.Items {
		all[item.GetName()] = item.Object
	}
	return all
}

func TestList_WithoutItemsIsEmpty(t *testing.T) {
	for _, items := range []string{"", `,"items":null`, `,"items":[]`} {
		got, err := list(t, strings.NewReader("{"+listType+","+listMeta+items+"}"))
		if err != nil || len(got.Items) > 0 || got.ResourceVersion != "42" {
			t.Errorf("items %q: got %v, %v", items, got, err)
		}
	}
}

// A server that does not support protobuf returns metadata as JSON. A server that cannot reduce objects to their
// metadata returns whole objects.
func TestList_AcceptsMetadataAsJSON(t *testing.T) {
	for name, body := range map[string]string{
		"only metadata": `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",` + listMeta +
			`,"items":[{"metadata":{"name":"one","namespace":"a","labels":{"a":"b"}}}]}`,
		"whole objects": `{"kind":"PodList","apiVersion":"v1",` + listMeta +
			`,"items":[{"metadata":{"name":"one","namespace":"a","labels":{"a":"b"}},"spec":{"nodeName":"x"}}]}`,
	} {
		client := newClient(t, respond(http.StatusOK, strings.NewReader(body)), widgets, "", objects.Metadata)
		got, err := listWith(t.Context(), client, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := metav1.ObjectMeta{Name: "one", Namespace: "a", Labels: map[string]string{"a": "b"}}
		items := got.Items
		if len(items) != 1 || items[0].Size() > 400 {
			t.Fatalf("%s: got %v", name, items)
		}
		if diff := cmp.Diff(want, metadataOf(t, items[0]).ObjectMeta); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestList_TruncatedResponseIsAnError(t *testing.T) {
	cut := errors.New("connection cut")
	for _, body := range []string{
		"{" + listType + "," + listMeta + `,"items":[` + widget("one") + "," + widget("two") + "]}",
		`{"items":[` + widget("one") + "," + widget("two") + "]," + listMeta + "," + listType + "}",
	} {
		for n := range len(body) {
			if _, err := list(t, strings.NewReader(body[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("after %q: got %v, want %v", body[:n], err, io.ErrUnexpectedEOF)
			}
			broken := io.MultiReader(strings.NewReader(body[:n]), iotest.ErrReader(cut))
			if _, err := list(t, broken); !errors.Is(err, cut) {
				t.Fatalf("after %q: got %v, want %v", body[:n], err, cut)
			}
		}
	}
}

// The items of custom resources precede the kind of the list. Only items without a kind wait for it.
func TestList_UnusableItemIsAnUnusableRecord(t *testing.T) {
	const kindless = `{"metadata":{"name":"kindless"}}`
	items := []string{widget("a"), "7", "null", `{"kind":"Widget","metadata":{"uid":"u"}}`, kindless, widget("b")}
	for body, names := range map[string][]string{
		`{"kind":"WidgetList","apiVersion":"v1","items":[%s],"metadata":{}}`: {"a", "", "", "", "kindless", "b"},
		`{"apiVersion":"v1","items":[%s],"kind":"WidgetList","metadata":{}}`: {"a", "", "", "", "b", "kindless"},
	} {
		got, err := list(t, strings.NewReader(fmt.Sprintf(body, strings.Join(items, ","))))
		if err != nil || len(got.Items) != len(names) {
			t.Fatalf("%s: got %v, %v", body, got, err)
		}
		for i, want := range names {
			r := got.Items[i]
			if (r.Unusable() != nil) != (want == "") || want != "" && r.GetName() != want {
				t.Errorf("%s: item %d is %q, reason %v", body, i, r.Key(), r.Unusable())
			}
		}
	}
}

// An unusable item keeps the parts of its identity that can be read.
func TestList_UnusableItemHasAnIdentity(t *testing.T) {
	for item, want := range map[string]string{
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"b","labels":[]}}`: "b",
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":3}}`:               "",
		`{"apiVersion":"example.com/v1","kind":"Widget"}`:                                     "",
	} {
		got, err := list(t, strings.NewReader("{"+listType+","+listMeta+`,"items":[`+item+"]}"))
		if err != nil || len(got.Items) != 1 {
			t.Fatalf("%s: got %v, %v", item, got, err)
		}
		if key, _ := got.Items[0].Identity(); got.Items[0].Unusable() == nil || key != want {
			t.Errorf("%s: got key %q, reason %v", item, key, got.Items[0].Unusable())
		}
	}
}

func TestList_UnexpectedResponseIsAnError(t *testing.T) {
	for name, test := range map[string]struct{ body, want string }{
		"a status":         {`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":500}`, `"Status"`},
		"a table":          {`{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"rows":[]}`, `"Table"`},
		"an object":        {widget("one"), `"Widget"`},
		"an empty object":  {`{}`, `kind ""`},
		"no kind":          {`{"apiVersion":"v1","items":[{}]}`, `kind ""`},
		"no apiVersion":    {`{"kind":"PodList","items":[{}]}`, `of ""`},
		"HTML":             {"<html>login</html>", "<html>login</html>"},
		"an array":         {`[1]`, "["},
		"a string":         {`"text"`, "text"},
		"items not a list": {`{"kind":"PodList","apiVersion":"v1","items":{}}`, "expected an array"},
		"duplicate items":  {`{"kind":"PodList","apiVersion":"v1","items":[],"items":[]}`, "two fields"},
		"two lists":        {`{"kind":"PodList","apiVersion":"v1","items":[]}{}`, "after the list"},
		"malformed":        {`{"kind":"PodList","apiVersion":"v1","items":[` + widget("a") + `}`, "invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := list(t, strings.NewReader(test.body)); !contains(err, test.want, "widgets.example.com") {
				t.Errorf("got %v and error %v, want an error that contains %q", got, err, test.want)
			}
		})
	}
}

// In a list of custom resources, the API server sends the list's kind after the items.
func TestList_DoesNotHoldItemsUntilTheKindArrives(t *testing.T) {
	const items, size = 32, 1 << 20
	large := strings.Replace(widget("one"), `"name"`, `"managedFields":"`+strings.Repeat("x", size)+`","name"`, 1)
	parts := []io.Reader{strings.NewReader(`{"apiVersion":"example.com/v1","items":[`)}
	for range items {
		parts = append(parts, strings.NewReader(large), strings.NewReader(","))
	}
	before, after := heapSize(), 0
	parts = append(parts, strings.NewReader(widget("last")+"]"), readerFunc(func([]byte) (int, error) {
		after = heapSize()
		return 0, io.EOF
	}), strings.NewReader(`,"kind":"WidgetList",`+listMeta+"}"))
	if got, err := list(t, io.MultiReader(parts...)); err != nil || len(got.Items) != items+1 {
		t.Fatalf("got error %v", err)
	}
	if held := after - before; held > items*size/4 {
		t.Errorf("%d MiB are in memory before the kind arrives, after items of %d MiB", held>>20, items*size>>20)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// heapSize returns the size of the reachable objects.
func heapSize() int {
	goruntime.GC()
	var stats goruntime.MemStats
	goruntime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

func TestList_LimitsSizeOfItemsButNotOfList(t *testing.T) {
	const items = 40
	piece := strings.Replace(widget("one"), "grüße", strings.Repeat("x", 1<<20), 1) + ","
	large := "{" + listType + `,"items":[` + strings.Repeat(piece, items) + widget("last") + "]}"
	if got, err := list(t, strings.NewReader(large)); err != nil || len(got.Items) != items+1 {
		t.Errorf("%d MiB of items: got error %v", items, err)
	}
	huge := "{" + listType + `,"items":[{"a":"` + strings.Repeat("x", 17<<20) + `"}]}`
	if _, err := list(t, strings.NewReader(huge)); !contains(err, "too large") {
		t.Errorf("an item of 17 MiB: got error %v", err)
	}
}
