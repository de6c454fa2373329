package children

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// Limits for inventories. Anyone who can update a parent can write its annotations, which can have 256 KiB in total, so
// entries beyond the limits are ignored. An entry takes about 60 bytes. Both limits therefore allow about a thousand
// kinds of children.
const (
	maxInventoryBytes   = 64 << 10
	maxInventoryEntries = 1000
)

// errInventoryTooLarge is returned if the desired children of a parent exceed the limits of an inventory.
var errInventoryTooLarge = fmt.Errorf(
	"too many kinds and namespaces of children: an inventory can have at most %d kinds and %d bytes",
	maxInventoryEntries, maxInventoryBytes)

// inventory lists the kinds of children that a parent can have, sorted by kind. The value of the annotation has the
// format "ConfigMap=v1/configmaps:0,Widget.example.com=v1/widgets:2@far@near".
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
	return namespace == "" || namespace == parent.GetNamespace() || slices.Contains(e.namespaces, namespace)
}

func (e inventoryEntry) String() string {
	text := e.kind.String() + "=" + e.version + "/" + e.resource + ":" + strconv.Itoa(e.stage)
	return strings.Join(append([]string{text}, e.namespaces...), "@")
}

// entryPattern matches the kind, group, version, resource, stage and namespaces of an entry. These become part of URLs
// and must not contain other characters.
var entryPattern = func() *regexp.Regexp {
	const name = `([A-Za-z0-9][-.A-Za-z0-9]*)`
	return regexp.MustCompile(`^([A-Za-z0-9][-A-Za-z0-9]*)(?:\.` + name + `)?=` + name + `/` + name +
		`:([0-9]{1,4})((?:@[-a-z0-9]+)*)$`)
}()

// parseEntry parses an entry, and reports whether it is valid.
func parseEntry(text string) (entry inventoryEntry, valid bool) {
	parts := entryPattern.FindStringSubmatch(text)
	if parts == nil {
		return inventoryEntry{}, false
	}
	entry = inventoryEntry{kind: schema.GroupKind{Group: parts[2], Kind: parts[1]}, version: parts[3], resource: parts[4]}
	entry.stage, _ = strconv.Atoi(parts[5])
	if parts[6] != "" {
		entry.namespaces = strings.Split(parts[6][1:], "@")
	}
	return entry, true
}

// parseInventory returns the entries whose kinds are accepted, sorted by kind, and all others in their original order.
// It drops malformed entries, duplicate kinds, and entries beyond the limits.
func parseInventory(text string, accept func(schema.GroupKind) bool) (accepted, others inventory) {
	if len(text) > maxInventoryBytes {
		text = text[:maxInventoryBytes]
		text = text[:max(strings.LastIndexByte(text, ','), 0)]
	}
	seen := map[schema.GroupKind]bool{}
	for part := range strings.SplitSeq(text, ",") {
		entry, valid := parseEntry(part)
		if !valid || seen[entry.kind] {
			continue
		}
		if seen[entry.kind] = true; len(seen) > maxInventoryEntries {
			break
		}
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

func (i inventory) String() string {
	entries := make([]string, len(i))
	for n, entry := range i {
		entries[n] = entry.String()
	}
	return strings.Join(entries, ",")
}

// annotation returns the text of the inventory, followed by as many of the other entries as fit. Because the
// inventory's own entries come first, other entries cannot displace them when the annotation is read.
func (i inventory) annotation(others inventory) (string, error) {
	text, entries := i.String(), len(i)
	if len(text) > maxInventoryBytes || entries > maxInventoryEntries {
		return "", errInventoryTooLarge
	}
	for _, other := range others {
		next := other.String()
		if text != "" {
			next = text + "," + next
		}
		if entries++; entries > maxInventoryEntries || len(next) > maxInventoryBytes {
			break
		}
		text = next
	}
	return text, nil
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
		other.namespaces = slices.Concat(before.namespaces, other.namespaces)
		slices.Sort(other.namespaces)
		other.namespaces = slices.Compact(other.namespaces)
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
	if c.cache.written.isAfter(parent) {
		return c.cache.inventory.filter(accept), nil
	}
	return parseInventory(parent.GetAnnotations()[c.inventoryKey()], accept)
}

// changeParent changes the inventory and, if finalize is set, adds the finalizer, and the annotation with which cleanUp
// finds the witness. It writes only if the finalizer or
// the entry of a known kind changes. Entries of other kinds never cause a write, but each write keeps them. The write
// is rejected if the parent has changed since it was read. Without this check, an inventory computed from an outdated
// parent would lose entries that were added in the meantime. The result gone is true if the parent is being deleted or
// no longer exists.
func (c *call) changeParent(
	ctx context.Context, parent *unstructured.Unstructured, finalize bool, change func(inventory) inventory,
) (gone bool, err error) {
	parents := c.parents(c.id)
	err = patch.RetryOnConflict(ctx, parents, parent, func(current *unstructured.Unstructured) error {
		now, others := c.inventoryOf(current, c.isKnown)
		next, finalizers := change(now), current.GetFinalizers()
		witness := finalize && c.desired.needsWitness && current.GetAnnotations()[c.witnessKey()] == ""
		finalize := finalize && !slices.Contains(finalizers, c.finalizer())
		if now.String() == next.String() && !finalize && !witness {
			return nil
		}
		if gone = current.GetDeletionTimestamp() != nil; gone {
			return nil
		}
		text, err := next.annotation(others)
		if err != nil {
			return err
		}
		annotations := map[string]any{c.inventoryKey(): text}
		if text == "" {
			annotations[c.inventoryKey()] = nil
		}
		if witness {
			annotations[c.witnessKey()] = "true"
		}
		changes := map[string]any{"annotations": annotations}
		if finalize {
			changes["finalizers"] = append(finalizers, c.finalizer())
		}
		written, err := patch.Metadata(ctx, parents, current, c.config.Name, changes)
		if err != nil {
			return err
		}
		updateMetadata(parent, written)
		c.parentExists = written.GetDeletionTimestamp() == nil
		c.cache.inventory, c.cache.written = next, versionOf(written)
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
