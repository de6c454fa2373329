package handlers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Limits of an inventory. Anyone who can update a parent can write its annotations, which can have 256 KiB in total, so
// entries beyond the limits are not read. An entry takes about 60 bytes: both limits allow for about a thousand kinds
// of children.
const (
	maxInventoryBytes   = 64 << 10
	maxInventoryEntries = 1000
)

// errInventoryTooLarge is returned for a parent that wants children of more kinds than an inventory can hold.
var errInventoryTooLarge = fmt.Errorf("too many kinds of children: an inventory has at most %d kinds and %d bytes",
	maxInventoryEntries, maxInventoryBytes)

// inventory lists the kinds of which a parent has children, or may have, sorted by kind. Each entry has the version and the
// resource that its children were last written as. In an annotation: "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets".
type inventory []inventoryEntry

// inventoryEntry has no resource if it was written without one.
type inventoryEntry struct {
	kind              schema.GroupKind
	version, resource string
}

func entryOf(kind schema.GroupKind, gvr schema.GroupVersionResource) inventoryEntry {
	return inventoryEntry{kind: kind, version: gvr.Version, resource: gvr.Resource}
}

func (e inventoryEntry) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: e.kind.Group, Version: e.version, Resource: e.resource}
}

func (e inventoryEntry) String() string {
	if e.resource == "" {
		return e.kind.String()
	}
	return e.kind.String() + "=" + e.version + "/" + e.resource
}

// parseEntry parses an entry, and reports whether its names are valid names of a kind and a resource. They become part
// of a URL.
func parseEntry(text string) (entry inventoryEntry, valid bool) {
	kind, served, hasResource := strings.Cut(text, "=")
	entry.kind = schema.ParseGroupKind(kind)
	if !isName(entry.kind.Kind) || entry.kind.Group != "" && !isName(entry.kind.Group) {
		return entry, false
	}
	if hasResource {
		var separated bool
		entry.version, entry.resource, separated = strings.Cut(served, "/")
		if !separated || !isName(entry.version) || !isName(entry.resource) {
			return entry, false
		}
	}
	return entry, true
}

// isName reports whether a name begins with a letter or a digit and consists of letters, digits, dashes and dots.
func isName(s string) bool {
	for i := range len(s) {
		if !isLetterOrDigit(s[i]) && (i == 0 || s[i] != '-' && s[i] != '.') {
			return false
		}
	}
	return s != ""
}

func isLetterOrDigit(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// parseInventory returns the sorted entries whose kinds are followed, and the others in their original order. It drops
// malformed entries, further entries of the same kind, and entries beyond the limits.
func parseInventory(text string, follows follows) (followed, others inventory) {
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
		if follows(entry.kind) {
			followed = append(followed, entry)
		} else {
			others = append(others, entry)
		}
	}
	followed.sort()
	return followed, others
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

// annotation returns the text of the inventory, followed by as many of the other entries as fit. The entries of the
// inventory come first, so that other entries cannot displace them when the annotation is read.
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

// with is the inventory with other entries, in the place of those of the same kinds.
func (i inventory) with(others inventory) inventory {
	all := slices.Concat(i.without(others), others)
	all.sort()
	return all
}

func (i inventory) without(others inventory) inventory {
	return slices.DeleteFunc(slices.Clone(i), func(entry inventoryEntry) bool {
		return slices.ContainsFunc(others, func(other inventoryEntry) bool { return other.kind == entry.kind })
	})
}

// only returns the entries whose kinds are followed.
func (i inventory) only(follows follows) inventory {
	return slices.DeleteFunc(slices.Clone(i), func(entry inventoryEntry) bool { return !follows(entry.kind) })
}

func (c *Children) inventoryKey() string { return c.config.Name + "/inventory" }

// inventoryManager applies the inventory and nothing else, because fields that a manager does not apply again are removed.
func (c *Children) inventoryManager() string { return c.config.Name + "/inventory" }

// inventoryOf returns the followed and the other entries of the parent's inventory. If the caller's parent is older
// than the last write of the inventory, it returns the entries that were written, and no others.
func (c *Children) inventoryOf(id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured, follows follows) (followed, others inventory) {
	if written, ok := c.memory.inventoryAfter(id, parent); ok {
		return written.only(follows), nil
	}
	return parseInventory(parent.GetAnnotations()[c.inventoryKey()], follows)
}

// record adds the planned kinds to the parent's inventory, and reports whether the parent turned out to be deleted.
func (p *pass) record(ctx context.Context, parent *unstructured.Unstructured) (deleted bool, err error) {
	return p.changeInventory(ctx, parent, func(now inventory) inventory { return now.with(p.plan.inventory()) })
}

// strike removes kinds of which no children are left.
func (p *pass) strike(ctx context.Context, kinds inventory) error {
	_, err := p.changeInventory(ctx, p.parent, func(now inventory) inventory { return now.without(kinds) })
	return err
}

// changeInventory writes the inventory if a followed entry changes. Other entries never cause a write, but each write
// keeps them. It writes only to the version of the parent that it read, because an inventory computed from a stale
// parent would lose entries that were added since.
func (p *pass) changeInventory(ctx context.Context, parent *unstructured.Unstructured, change func(inventory) inventory) (deleted bool, err error) {
	parents := p.parents(p.id)
	err = onConflict(ctx, parents, parent, func(current *unstructured.Unstructured) error {
		now, others := p.inventoryOf(p.id, current, p.follows)
		p.logOthers(ctx, others)
		next := change(now)
		if slices.Equal(now, next) {
			return nil
		}
		if deleted = current.GetDeletionTimestamp() != nil; deleted {
			return nil
		}
		text, err := next.annotation(others)
		if err != nil {
			return err
		}
		metadata := map[string]any{"resourceVersion": current.GetResourceVersion()}
		if text != "" {
			metadata["annotations"] = map[string]any{p.inventoryKey(): text}
		}
		written, err := parents.Apply(ctx, p.id.Name(), applyTo(current, metadata), metav1.ApplyOptions{FieldManager: p.inventoryManager(), Force: true})
		if err != nil {
			return err
		}
		adoptMetadata(parent, written)
		p.memory.rememberInventory(p.id, written, next)
		return nil
	})
	if isGoneOrReplaced(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("record the kinds of children: %w", err)
	}
	return deleted, nil
}

// logOthers logs, once for each change, that the inventory names kinds that are not followed.
func (p *pass) logOthers(ctx context.Context, others inventory) {
	log := logr.FromContextOrDiscard(ctx).V(1)
	if len(others) == 0 || !log.Enabled() || !p.memory.isNewlyIgnored(p.id, others.String()) {
		return
	}
	const most = 3
	log.Info("Inventory names kinds that are neither wanted nor in ChildrenConfig.Kinds; their children are not pruned",
		keyKinds, others[:min(len(others), most)].String(), keyCount, len(others))
}
