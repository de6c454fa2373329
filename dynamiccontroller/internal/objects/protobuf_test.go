package objects

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// metadataGenerator generates objects that have only metadata.
type metadataGenerator struct{ t *rapid.T }

func (g metadataGenerator) word() string { return jsonText(g).word() }

func (g metadataGenerator) words(limit int) []string {
	words := rapid.SliceOfN(rapid.Custom(func(*rapid.T) string { return g.word() }), 0, limit).Draw(g.t, "words")
	if len(words) == 0 {
		return nil
	}
	return words
}

func (g metadataGenerator) labels() map[string]string {
	var set map[string]string
	for _, key := range g.words(4) {
		if set == nil {
			set = map[string]string{}
		}
		set[key] = g.word()
	}
	return set
}

// segment returns a word that can be part of a key.
func (g metadataGenerator) segment() string {
	return strings.NewReplacer("/", "", "\x00", "").Replace(g.word())
}

func (g metadataGenerator) time() metav1.Time {
	return metav1.Unix(rapid.Int64Range(1, 1<<34).Draw(g.t, "seconds"), 0)
}

func (g metadataGenerator) object() *metav1.PartialObjectMetadata {
	chance := jsonText(g).oneIn
	m := metav1.ObjectMeta{
		Name: "a" + g.segment(), GenerateName: g.word(), Namespace: g.segment(), UID: types.UID(g.word()),
		ResourceVersion: g.word(), Generation: rapid.Int64().Draw(g.t, "generation"), CreationTimestamp: g.time(),
		Labels: g.labels(), Annotations: g.labels(), Finalizers: g.words(3),
	}
	if chance(2) {
		deleted, seconds := g.time(), rapid.Int64().Draw(g.t, "grace period")
		m.DeletionTimestamp, m.DeletionGracePeriodSeconds = &deleted, &seconds
	}
	for range rapid.IntRange(0, 3).Draw(g.t, "owners") {
		controller := chance(2)
		m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{
			APIVersion: "v1", Kind: "K", Name: g.word(), UID: types.UID(g.word()), Controller: &controller,
		})
	}
	for range rapid.IntRange(0, 2).Draw(g.t, "managers") {
		m.ManagedFields = append(m.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: g.word(), FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`),
		})
	}
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: m,
	}
}

// rearranged returns an equivalent encoding that no API server would send: the fields are in another order, there are
// unknown fields, the name occurs twice so that its last value counts, and the metadata is split in two.
func (g metadataGenerator) rearranged(data []byte) []byte {
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1<<40)
	fields := [][]byte{protowire.AppendString(protowire.AppendTag(nil, nameField, protowire.BytesType), "old"), unknown}
	var numbers []protowire.Number
	_ = eachField(data, func(number protowire.Number, raw, _ []byte) {
		fields, numbers = append(fields, raw), append(numbers, number)
	})
	numbers = rapid.Permutation(numbers).Draw(g.t, "order")
	slices.SortStableFunc(fields, func(a, b []byte) int { // stable, because the order of repeated fields matters
		return slices.Index(numbers, numberIn(a)) - slices.Index(numbers, numberIn(b))
	})
	middle := rapid.IntRange(0, len(fields)).Draw(g.t, "middle")
	out := slices.Clone(unknown)
	for _, part := range [][][]byte{fields[:middle], fields[middle:]} {
		out = protowire.AppendTag(out, metadataField, protowire.BytesType)
		out = protowire.AppendBytes(out, slices.Concat(part...))
	}
	return out
}

func numberIn(field []byte) protowire.Number {
	number, _, _ := protowire.ConsumeTag(field)
	return number
}

func marshal(t testing.TB, o *metav1.PartialObjectMetadata) []byte {
	t.Helper()
	data, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parseProtobuf(t testing.TB, data []byte, projection Projection) *Record {
	t.Helper()
	r, err := ParseProtobuf(data, projection)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParseProtobuf_RecordEqualsTheObject(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		g := metadataGenerator{rt}
		o := g.object()
		data := marshal(t, o)
		if rapid.Bool().Draw(rt, "rearranged") {
			data = g.rearranged(data)
		}
		requireSameAsPartial(t, parseProtobuf(t, data, Metadata), o)
		requireSameKeys(t, parseProtobuf(t, data, Keys), o)
	})
}

// requireSameAsPartial compares a record with the object that it was created from, and with a record of the same object
// that was created from JSON.
func requireSameAsPartial(t testing.TB, r *Record, o *metav1.PartialObjectMetadata) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	fromJSON := parse(t, string(text), Metadata)
	for _, other := range []*Record{fromJSON, parse(t, string(text), Full)} {
		if !r.SameMetadata(other) || !other.SameMetadata(r) || r.Key() != other.Key() {
			t.Fatalf("the record of %s differs from the one that was created from JSON", text)
		}
	}
	if !r.SameContent(fromJSON) {
		t.Fatalf("the content of %s differs from that of the record that was created from JSON", text)
	}
	other := o.DeepCopy()
	other.Finalizers = append(other.Finalizers, "other")
	changed := parseProtobuf(t, marshal(t, other), Metadata)
	if r.SameMetadata(changed) || changed.SameMetadata(fromJSON) || fromJSON.SameContent(changed) {
		t.Fatalf("the records of %s and of an object with another finalizer are the same", text)
	}
	want := o.DeepCopy()
	want.ManagedFields = nil
	requireDecoded(t, r, Metadata, want)
	if got, want := r.GetLabels(), o.Labels; !reflect.DeepEqual(got, want) {
		t.Fatalf("labels %q, want %q", got, want)
	}
	if diff := cmp.Diff(o.OwnerReferences, r.OwnerReferences()); diff != "" {
		t.Fatal(diff)
	}
	for _, label := range []string{"metadata", "labels", "é", "missing", ""} {
		requireSameLabel(t, (*recordLabels)(r), label, o.Labels)
	}
	var into, intoJSON metav1.PartialObjectMetadata
	if err := errors.Join(r.DecodeInto(&into, Full), fromJSON.DecodeInto(&intoJSON, Full)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(intoJSON, into); diff != "" {
		t.Fatal(diff)
	}
	if kind := r.GetObjectKind().GroupVersionKind(); kind != o.GroupVersionKind() {
		t.Fatalf("kind %v", kind)
	}
}

func requireSameLabel(t testing.TB, got labels.Labels, label string, want map[string]string) {
	t.Helper()
	value, exists := got.Lookup(label)
	if wantValue, wantExists := want[label]; value != wantValue || exists != wantExists || got.Has(label) != exists {
		t.Fatalf("label %q: %q, %v, want %q, %v", label, value, exists, wantValue, wantExists)
	}
}

func requireSameKeys(t testing.TB, r *Record, o *metav1.PartialObjectMetadata) {
	t.Helper()
	got := []string{r.GetNamespace(), r.GetName(), string(r.GetUID()), r.GetResourceVersion(), r.data}
	if diff := cmp.Diff([]string{o.Namespace, o.Name, string(o.UID), o.ResourceVersion, ""}, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestParseProtobuf_ErrorNamesTheProblem(t *testing.T) {
	valid := marshal(t, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"}})
	for name, test := range map[string]struct {
		data       []byte
		projection Projection
		want       string
	}{
		"no data":                {nil, Metadata, errNoName.Error()},
		"no name":                {marshal(t, &metav1.PartialObjectMetadata{}), Keys, errNoName.Error()},
		"truncated":              {valid[:len(valid)-1], Metadata, "unexpected EOF"},
		"malformed metadata":     {protowire.AppendBytes([]byte{metadataField<<3 | 2}, []byte{0xff}), Keys, "unexpected EOF"},
		"invalid field number":   {[]byte{0}, Keys, "invalid field number"},
		"projection of the spec": {valid, Full, "only metadata"},
	} {
		if r, err := ParseProtobuf(test.data, test.projection); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, %v, want an error that contains %q", name, r, err, test.want)
		}
	}
}

// A projection that does not keep the labels does not need to decode them.
func TestParseProtobuf_RejectsMetadataThatCannotBeDecoded(t *testing.T) {
	for name, field := range map[string][]byte{
		"labels":            protowire.AppendBytes(protowire.AppendTag(nil, labelsField, protowire.BytesType), []byte{0xff}),
		"a numeric label":   protowire.AppendBytes(protowire.AppendTag(nil, labelsField, protowire.BytesType), []byte{8, 1}),
		"creationTimestamp": protowire.AppendString(protowire.AppendTag(nil, creationField, protowire.BytesType), "x"),
		"owner references":  protowire.AppendString(protowire.AppendTag(nil, ownerReferencesField, protowire.BytesType), "x"),
		"generation":        protowire.AppendString(protowire.AppendTag(nil, generationField, protowire.BytesType), "x"),
		"finalizers":        protowire.AppendVarint(protowire.AppendTag(nil, 14, protowire.VarintType), 1),
	} {
		metadata := append(protowire.AppendString([]byte{nameField<<3 | 2}, "a"), field...)
		if (&metav1.ObjectMeta{}).Unmarshal(metadata) == nil {
			t.Errorf("%s: the metadata is valid", name)
		}
		data := protowire.AppendBytes([]byte{metadataField<<3 | 2}, metadata)
		if r, err := ParseProtobuf(data, Metadata); err == nil {
			t.Errorf("%s: got %v, want an error", name, r)
		}
		if _, err := ParseProtobuf(data, Keys); err != nil {
			t.Errorf("%s: projection Keys: %v", name, err)
		}
		if r := ParseProtobufItem(data, Metadata); r.Unusable() == nil || r.Key() != "a" {
			t.Errorf("%s: got key %q, reason %v", name, r.Key(), r.Unusable())
		}
	}
}

// API servers send each label once.
func TestParseProtobuf_KeepsLastOfDuplicateLabels(t *testing.T) {
	var data []byte
	for _, value := range []string{"first", "last"} {
		m := metav1.ObjectMeta{Name: "a", Labels: map[string]string{"label": value}}
		data = append(data, marshal(t, &metav1.PartialObjectMetadata{ObjectMeta: m})...)
	}
	r := parseProtobuf(t, data, Metadata)
	if value, _ := (*recordLabels)(r).Lookup("label"); value != "last" || r.GetLabels()["label"] != "last" {
		t.Errorf("got %q and %q", value, r.GetLabels())
	}
}

func TestParseProtobuf_DoesNotKeepTheReceivedBytes(t *testing.T) {
	data := marshal(t, protobufWidget())
	r := parseProtobuf(t, data, Metadata)
	clear(data)
	requireSameAsPartial(t, r, protobufWidget())
}

// protobufWidget returns metadata with large managedFields.
func protobufWidget() *metav1.PartialObjectMetadata {
	fields := `{"f:spec":"` + strings.Repeat("x", 2000) + `"}`
	return &metav1.PartialObjectMetadata{
		TypeMeta: partialTypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: "widget-4711", Namespace: "team-a", UID: "5f0f4b1e-9d5c-4f8e-a9c3-1f2e3d4c5b6a", ResourceVersion: "123456",
			Generation: 3, CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)),
			Labels:        map[string]string{"app.kubernetes.io/name": "shop"},
			Annotations:   map[string]string{"last-applied": strings.Repeat("y", 4000)},
			ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(fields)}},
		},
	}
}

func TestParseProtobuf_AllocatesOnlyWhatTheRecordKeeps(t *testing.T) {
	data := marshal(t, protobufWidget())
	for projection, limit := range []float64{Keys: 2, Metadata: 3} {
		got := testing.AllocsPerRun(100, func() { parseProtobuf(t, data, Projection(projection)) })
		if got > limit {
			t.Errorf("projection %d: %v allocations, want at most %v", projection, got, limit)
		}
	}
	if r := parseProtobuf(t, data, Metadata); r.Size()-allocated(len(r.data)) > 160 || len(r.data) > 4300 {
		t.Errorf("the record uses %d bytes for %d bytes of data", r.Size(), len(r.data))
	}
}

// FuzzParseProtobuf checks that no input causes a panic, and that canonical encodings are decoded in the same way as by
// the generated code.
func FuzzParseProtobuf(f *testing.F) {
	valid := marshal(f, protobufWidget())
	for _, seed := range [][]byte{nil, valid, valid[:len(valid)/2], {0}, {0xff}, {0x0a, 0x02, 0x0a, 0x00}, {0x0b, 0x0c}} {
		f.Add(seed)
	}
	selector := labels.SelectorFromSet(labels.Set{"a": "b"})
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, projection := range []Projection{Keys, Metadata} {
			if r, err := ParseProtobuf(data, projection); err == nil {
				readAll(r, selector)
			}
		}
		want := &metav1.PartialObjectMetadata{}
		if want.Unmarshal(data) != nil || want.Name == "" || !bytes.Equal(marshal(t, want), data) {
			return
		}
		requireSameKeys(t, parseProtobuf(t, data, Keys), want)
		r := parseProtobuf(t, data, Metadata)
		want.TypeMeta, want.ManagedFields = partialTypeMeta, nil
		requireDecoded(t, r, Metadata, want)
		if got := r.GetLabels(); !reflect.DeepEqual(got, want.Labels) {
			t.Fatalf("labels %q, want %q", got, want.Labels)
		}
	})
}

func TestParseProtobufItem_KeyIsUnknownIfTheNamespaceIsANumber(t *testing.T) {
	metadata := protowire.AppendString(protowire.AppendTag(nil, nameField, protowire.BytesType), "a")
	metadata = protowire.AppendString(protowire.AppendTag(metadata, uidField, protowire.BytesType), "u")
	metadata = protowire.AppendVarint(protowire.AppendTag(metadata, namespaceField, protowire.VarintType), 1)
	data := protowire.AppendBytes(protowire.AppendTag(nil, metadataField, protowire.BytesType), metadata)
	for projection := Keys; projection <= Metadata; projection++ {
		r := ParseProtobufItem(data, projection)
		if key, uid := r.Identity(); r.Unusable() == nil || key != "" || uid != "u" {
			t.Errorf("projection %d: got key %q, UID %q, reason %v", projection, key, uid, r.Unusable())
		}
	}
}
