package inventory

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Inventory lists the kinds of children that a parent can have, sorted by kind. The value of the annotation has the
// format "ConfigMap=v1/configmaps:0,Widget.example.com=v1/widgets:2@far@near". If it has many namespaces, they follow
// the kinds in packed form, see pack: "ConfigMap=v1/configmaps:0,Widget.example.com=v1/widgets:2;Uy4tK...".
type Inventory []Entry

// Entry is a kind of children that a parent can have. The version and the resource are those of the last write
// to a child of the kind.
type Entry struct {
	Kind              schema.GroupKind
	Version, Resource string
	// stage is the last stage of the parent's children. Any later stage of an object counts as this one because users who
	// can create an object can set any stage.
	Stage int
	// namespaces lists the namespaces, other than the parent's, that can contain children of the kind, sorted. Objects in
	// other namespaces are not children: anyone who can create an object can set the parent's owner reference or mark on
	// it.
	Namespaces []string
}

// New returns an entry without namespaces.
func New(kind schema.GroupKind, gvr schema.GroupVersionResource) Entry {
	return Entry{Kind: kind, Version: gvr.Version, Resource: gvr.Resource}
}

// GVR returns the resource with which children of the kind were last written.
func (e Entry) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: e.Kind.Group, Version: e.Version, Resource: e.Resource}
}

// Covers reports whether a namespace can contain children of the kind. For cluster-scoped objects, the namespace is
// empty.
func (e Entry) Covers(parent metav1.Object, namespace string) bool {
	return namespace == "" || namespace == parent.GetNamespace() || e.lists(namespace)
}

func (e Entry) lists(namespace string) bool {
	_, listed := slices.BinarySearch(e.Namespaces, namespace)
	return listed
}

func (e Entry) equals(other Entry) bool {
	return e.Kind == other.Kind && e.GVR() == other.GVR() && e.Stage == other.Stage &&
		slices.Equal(e.Namespaces, other.Namespaces)
}

func (e Entry) withoutNamespaces() Entry {
	e.Namespaces = nil
	return e
}

func (e Entry) String() string {
	text := e.Kind.String() + "=" + e.Version + "/" + e.Resource + ":" + strconv.Itoa(e.Stage)
	return strings.Join(append([]string{text}, e.Namespaces...), "@")
}

// entryPattern matches the kind, group, version, resource and stage of an entry. These, and the namespaces, become part
// of URLs and must not contain other characters.
var entryPattern = func() *regexp.Regexp {
	const name = `([A-Za-z0-9][-.A-Za-z0-9]*)`
	return regexp.MustCompile(`^([A-Za-z0-9][-A-Za-z0-9]*)(?:\.` + name + `)?=` + name + `/` + name + `:([0-9]{1,4})$`)
}()

// isNamespace reports whether a text consists of the characters of a namespace.
func isNamespace(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}

// parseEntry parses an entry, and reports whether it is valid.
func parseEntry(text string) (entry Entry, valid bool) {
	text, namespaces, has := strings.Cut(text, "@")
	parts := entryPattern.FindStringSubmatch(text)
	if parts == nil {
		return Entry{}, false
	}
	entry = Entry{Kind: schema.GroupKind{Group: parts[2], Kind: parts[1]}, Version: parts[3], Resource: parts[4]}
	entry.Stage, _ = strconv.Atoi(parts[5])
	if has {
		entry.Namespaces = sorted(strings.Split(namespaces, "@"))
	}
	return entry, !slices.ContainsFunc(entry.Namespaces, func(namespace string) bool { return !isNamespace(namespace) })
}

// sorted sorts namespaces and removes duplicates.
func sorted(namespaces []string) []string {
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

// Parse returns the entries of an inventory in their original order. It drops malformed entries, duplicate
// kinds, and entries beyond the limits.
func Parse(text string) (all Inventory) {
	if len(text) > MaxBytes {
		text = text[:MaxBytes]
		text = text[:max(strings.LastIndexByte(text, ','), 0)]
	}
	if numbered.MatchString(text) {
		return nil // see FormatOf
	}
	text, packed, isPacked := strings.Cut(text, ";")
	seen := map[schema.GroupKind]bool{}
	for part := range strings.SplitSeq(text, ",") {
		entry, valid := parseEntry(part)
		if !valid || seen[entry.Kind] {
			continue
		}
		if seen[entry.Kind] = true; len(seen) > maxEntries {
			break
		}
		all = append(all, entry)
	}
	if isPacked {
		all.unpack(packed)
	}
	return all
}

// Split returns the entries whose kinds are accepted, sorted by kind, and all others in their original order.
func (i Inventory) Split(accept func(schema.GroupKind) bool) (accepted, others Inventory) {
	for _, entry := range i {
		if accept(entry.Kind) {
			accepted = append(accepted, entry)
		} else {
			others = append(others, entry)
		}
	}
	accepted.Sort()
	return accepted, others
}

// Sort sorts the entries by kind.
func (i Inventory) Sort() {
	slices.SortFunc(i, func(a, b Entry) int { return strings.Compare(a.Kind.String(), b.Kind.String()) })
}

// Equals reports whether two inventories are the same.
func (i Inventory) Equals(other Inventory) bool {
	return slices.EqualFunc(i, other, Entry.equals)
}

// EntryOf returns the entry of a kind, or an entry without a resource if the inventory lacks the kind.
func (i Inventory) EntryOf(kind schema.GroupKind) Entry {
	if n := i.Index(kind); n >= 0 {
		return i[n]
	}
	return Entry{Kind: kind}
}

// Index returns the index of the entry of a kind, or -1.
func (i Inventory) Index(kind schema.GroupKind) int {
	return slices.IndexFunc(i, func(entry Entry) bool { return entry.Kind == kind })
}

// With returns the inventory with the given entries added. An added entry replaces the existing entry of its kind, but
// keeps that entry's namespaces and the later of the two stages.
func (i Inventory) With(others Inventory) Inventory {
	all := i.Without(others)
	for _, other := range others {
		before := i.EntryOf(other.Kind)
		other.Stage = max(other.Stage, before.Stage)
		if !slices.Equal(before.Namespaces, other.Namespaces) {
			other.Namespaces = sorted(slices.Concat(before.Namespaces, other.Namespaces))
		}
		all = append(all, other)
	}
	all.Sort()
	return all
}

// Without returns the inventory without the kinds of the given entries.
func (i Inventory) Without(others Inventory) Inventory {
	return i.Filter(func(kind schema.GroupKind) bool { return others.Index(kind) < 0 })
}

// Filter returns the entries whose kinds are accepted.
func (i Inventory) Filter(accept func(schema.GroupKind) bool) Inventory {
	return slices.DeleteFunc(slices.Clone(i), func(entry Entry) bool { return !accept(entry.Kind) })
}

// numbered matches an inventory with the number of its format, such as "v2:". No inventory in format 1 begins like
// this.
var numbered = regexp.MustCompile(`^v([0-9]{1,4}):`)

// FormatOf returns the number of the format of an inventory.
func FormatOf(text string) int {
	format := 1
	if parts := numbered.FindStringSubmatch(text); parts != nil {
		format, _ = strconv.Atoi(parts[1])
	}
	return format
}
