package children

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// inventory lists the kinds of children that a parent can have, sorted by kind. The value of the annotation has the
// format "ConfigMap=v1/configmaps:0,Widget.example.com=v1/widgets:2@far@near". If it has many namespaces, they follow
// the kinds in packed form, see pack: "ConfigMap=v1/configmaps:0,Widget.example.com=v1/widgets:2;Uy4tK...".
type inventory []inventoryEntry

// inventoryEntry is a kind of children that a parent can have. The version and the resource are those of the last write
// to a child of the kind.
type inventoryEntry struct {
	kind              schema.GroupKind
	version, resource string
	// stage is the last stage of the parent's children. Any later stage of an object counts as this one because users who
	// can create an object can set any stage.
	stage int
	// namespaces lists the namespaces, other than the parent's, that can contain children of the kind, sorted. Objects in
	// other namespaces are not children: anyone who can create an object can set the parent's owner reference or mark on
	// it.
	namespaces []string
}

func newEntry(kind schema.GroupKind, gvr schema.GroupVersionResource) inventoryEntry {
	return inventoryEntry{kind: kind, version: gvr.Version, resource: gvr.Resource}
}

func (e inventoryEntry) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: e.kind.Group, Version: e.version, Resource: e.resource}
}

// covers reports whether a namespace can contain children of the kind. For cluster-scoped objects, the namespace is
// empty.
func (e inventoryEntry) covers(parent metav1.Object, namespace string) bool {
	return namespace == "" || namespace == parent.GetNamespace() || e.lists(namespace)
}

func (e inventoryEntry) lists(namespace string) bool {
	_, listed := slices.BinarySearch(e.namespaces, namespace)
	return listed
}

func (e inventoryEntry) equals(other inventoryEntry) bool {
	return e.kind == other.kind && e.gvr() == other.gvr() && e.stage == other.stage &&
		slices.Equal(e.namespaces, other.namespaces)
}

func (e inventoryEntry) withoutNamespaces() inventoryEntry {
	e.namespaces = nil
	return e
}

func (e inventoryEntry) String() string {
	text := e.kind.String() + "=" + e.version + "/" + e.resource + ":" + strconv.Itoa(e.stage)
	return strings.Join(append([]string{text}, e.namespaces...), "@")
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
func parseEntry(text string) (entry inventoryEntry, valid bool) {
	text, namespaces, has := strings.Cut(text, "@")
	parts := entryPattern.FindStringSubmatch(text)
	if parts == nil {
		return inventoryEntry{}, false
	}
	entry = inventoryEntry{kind: schema.GroupKind{Group: parts[2], Kind: parts[1]}, version: parts[3], resource: parts[4]}
	entry.stage, _ = strconv.Atoi(parts[5])
	if has {
		entry.namespaces = sorted(strings.Split(namespaces, "@"))
	}
	return entry, !slices.ContainsFunc(entry.namespaces, func(namespace string) bool { return !isNamespace(namespace) })
}

// sorted sorts namespaces and removes duplicates.
func sorted(namespaces []string) []string {
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

// parseInventory returns the entries of an inventory in their original order. It drops malformed entries, duplicate
// kinds, and entries beyond the limits.
func parseInventory(text string) (all inventory) {
	if len(text) > maxInventoryBytes {
		text = text[:maxInventoryBytes]
		text = text[:max(strings.LastIndexByte(text, ','), 0)]
	}
	if numbered.MatchString(text) {
		return nil // see checkInventory
	}
	text, packed, isPacked := strings.Cut(text, ";")
	seen := map[schema.GroupKind]bool{}
	for part := range strings.SplitSeq(text, ",") {
		entry, valid := parseEntry(part)
		if !valid || seen[entry.kind] {
			continue
		}
		if seen[entry.kind] = true; len(seen) > maxInventoryEntries {
			break
		}
		all = append(all, entry)
	}
	if isPacked {
		all.unpack(packed)
	}
	return all
}

// split returns the entries whose kinds are accepted, sorted by kind, and all others in their original order.
func (i inventory) split(accept func(schema.GroupKind) bool) (accepted, others inventory) {
	for _, entry := range i {
		if accept(entry.kind) {
			accepted = append(accepted, entry)
		} else {
			others = append(others, entry)
		}
	}
	accepted.sort()
	return accepted, others
}

func (i inventory) sort() {
	slices.SortFunc(i, func(a, b inventoryEntry) int { return strings.Compare(a.kind.String(), b.kind.String()) })
}

func (i inventory) equals(other inventory) bool {
	return slices.EqualFunc(i, other, inventoryEntry.equals)
}

// entryOf returns the entry of a kind, or an entry without a resource if there is none.
func (i inventory) entryOf(kind schema.GroupKind) inventoryEntry {
	if n := i.index(kind); n >= 0 {
		return i[n]
	}
	return inventoryEntry{kind: kind}
}

func (i inventory) index(kind schema.GroupKind) int {
	return slices.IndexFunc(i, func(entry inventoryEntry) bool { return entry.kind == kind })
}

// with returns the inventory with the given entries added. An added entry replaces the existing entry of its kind, but
// keeps that entry's namespaces and the later of the two stages.
func (i inventory) with(others inventory) inventory {
	all := i.without(others)
	for _, other := range others {
		before := i.entryOf(other.kind)
		other.stage = max(other.stage, before.stage)
		if !slices.Equal(before.namespaces, other.namespaces) {
			other.namespaces = sorted(slices.Concat(before.namespaces, other.namespaces))
		}
		all = append(all, other)
	}
	all.sort()
	return all
}

// without returns the inventory without the kinds of the given entries.
func (i inventory) without(others inventory) inventory {
	return i.filter(func(kind schema.GroupKind) bool { return others.index(kind) < 0 })
}

// filter returns the entries whose kinds are accepted.
func (i inventory) filter(accept func(schema.GroupKind) bool) inventory {
	return slices.DeleteFunc(slices.Clone(i), func(entry inventoryEntry) bool { return !accept(entry.kind) })
}

// inventoryOf splits the parent's inventory into the entries whose kinds are accepted and all others. If the given
// parent is older than the last write to the inventory, it returns the accepted entries of that write, and nil for the
// others.
func (c *call) inventoryOf(
	parent *unstructured.Unstructured, accept func(schema.GroupKind) bool,
) (accepted, others inventory) {
	if c.cache.written.IsAfter(parent, time.Now()) {
		return c.cache.inventory.filter(accept), nil
	}
	if text := parent.GetAnnotations()[c.names.Inventory()]; text != c.parsed.text {
		c.parsed = parsedInventory{text: text, entries: parseInventory(text)}
	}
	return c.parsed.entries.split(accept)
}

// parsedInventory is the last inventory that a call has parsed.
type parsedInventory struct {
	text    string
	entries inventory
}

// changeParent changes the inventory as far as it fits and, if finalize is set, adds the finalizer, and the annotation
// which shows that the parent has a witness. It writes only if one of them or the entry of a known kind changes.
// Entries of other kinds never cause a write, but each write keeps them. The write is rejected if the parent has
// changed since it was read. Without this check, an inventory computed from an outdated parent would lose entries that
// were added in the meantime. The result gone is true if the parent is being deleted or no longer exists.
func (c *call) changeParent(
	ctx context.Context, parent *unstructured.Unstructured, finalize bool, change func(inventory) inventory,
) (gone bool, err error) {
	parents := c.parents(c.id)
	err = patch.RetryOnConflict(ctx, parents, parent, func(current *unstructured.Unstructured) error {
		if err := c.checkInventory(current); err != nil {
			return err
		}
		now, others := c.inventoryOf(current, c.isListed)
		room := c.inventoryRoom(current)
		next, finalizers := now.grow(change(now), room), current.GetFinalizers()
		witness := finalize && c.desired.needsWitness && c.witnessErr == nil && !c.rules.IsWitnessed(current)
		finalize := finalize && !slices.Contains(finalizers, c.names.Finalizer())
		changed := !now.equals(next)
		if !changed && !finalize && !witness {
			c.recorded = next
			return nil
		}
		if gone = current.GetDeletionTimestamp() != nil; gone {
			return nil
		}
		annotations := map[string]any{}
		if changed {
			annotations[c.names.Inventory()] = next.annotation(others, room)
		}
		if witness {
			annotations[c.names.Witness()] = string(current.GetUID())
		}
		changes := map[string]any{"annotations": annotations}
		if finalize {
			changes["finalizers"] = append(finalizers, c.names.Finalizer())
		}
		written, err := patch.Metadata(ctx, parents, current, c.config.Name, changes)
		if err != nil {
			return err
		}
		updateMetadata(parent, written)
		c.parentExists = written.GetDeletionTimestamp() == nil
		c.recorded, c.cache.inventory, c.cache.written = next, next, decide.VersionOf(written, time.Now())
		return nil
	})
	if patch.IsGone(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("record the kinds of children: %w", err)
	}
	return gone, nil
}
