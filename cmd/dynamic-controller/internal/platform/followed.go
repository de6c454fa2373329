package platform

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// followedKinds returns the kinds of children that instances may have: those of the program, those of the stored
// revisions of all Blueprints with the name, and those of deleted revisions as long as an instance may have such
// children. The kinds of the newest spec are always included, even if it is refused, because a version of the platform
// that stored no revisions may have served it. An inventory can name other kinds, because anyone who can update an
// instance can write it. They are ignored.
func (p *Platform) followedKinds(b *blueprint.Blueprint, running *program, h history) []handlers.ChildKind {
	kinds := kindSet{}
	for _, kind := range running.kinds {
		kinds.add(handlers.ChildKind{GroupKind: kind.gvk.GroupKind(), Elsewhere: kind.foreign})
	}
	for _, r := range h {
		kinds.add(p.kindsOfRevision(r)...)
	}
	kinds.add(p.kindsOfRevision(&revision{kinds: templateKinds(b.Spec.Resources)})...)
	return kinds.list()
}

// kindsOfRevision returns the kinds of a revision's templates, and of those deleted before it.
func (p *Platform) kindsOfRevision(r *revision) []handlers.ChildKind {
	kinds := slices.Clone(r.former)
	for _, kind := range r.kinds {
		if kind.Kind != "" {
			kinds = append(kinds, handlers.ChildKind{GroupKind: kind.GroupKind(), Elsewhere: kind.hasNamespace || !p.isNamespaced(kind.GroupVersionKind)})
		}
	}
	return kinds
}

// isNamespaced reports whether the objects of a kind are known to be in namespaces.
func (p *Platform) isNamespaced(gvk schema.GroupVersionKind) bool {
	mapping, err := p.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	return err == nil && mapping.Scope.Name() == meta.RESTScopeNameNamespace
}

// kindSet has the kinds of children. The value reports whether some can be outside the namespace of their instance.
type kindSet map[schema.GroupKind]bool

func (s kindSet) add(kinds ...handlers.ChildKind) {
	for _, kind := range kinds {
		s[kind.GroupKind] = s[kind.GroupKind] || kind.Elsewhere
	}
}

func (s kindSet) list() (kinds []handlers.ChildKind) {
	sorted := slices.SortedFunc(maps.Keys(s), func(a, b schema.GroupKind) int { return strings.Compare(a.String(), b.String()) })
	for _, kind := range sorted {
		kinds = append(kinds, handlers.ChildKind{GroupKind: kind, Elsewhere: s[kind]})
	}
	return kinds
}

// includes reports whether all of the wanted kinds are among those that are followed.
func includes(followed, wanted []handlers.ChildKind) bool {
	for _, kind := range wanted {
		if !slices.Contains(followed, kind) && !slices.Contains(followed, handlers.ChildKind{GroupKind: kind.GroupKind, Elsewhere: true}) {
			return false
		}
	}
	return true
}

// encodedKind is a kind in the annotation of a revision.
type encodedKind struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Elsewhere bool   `json:"elsewhere,omitempty"`
}

func encodeKinds(kinds []handlers.ChildKind) (string, error) {
	encoded := make([]encodedKind, 0, len(kinds))
	for _, kind := range kinds {
		encoded = append(encoded, encodedKind{kind.Group, kind.Kind, kind.Elsewhere})
	}
	data, err := json.Marshal(encoded)
	return string(data), err
}

// decodeKinds returns nothing for a malformed annotation.
func decodeKinds(text string) (kinds []handlers.ChildKind) {
	var encoded []encodedKind
	if text == "" || json.Unmarshal([]byte(text), &encoded) != nil {
		return nil
	}
	for _, kind := range encoded {
		if kind.Kind != "" {
			kinds = append(kinds, handlers.ChildKind{GroupKind: schema.GroupKind{Group: kind.Group, Kind: kind.Kind}, Elsewhere: kind.Elsewhere})
		}
	}
	return kinds
}

// keepKinds records the kinds of revisions that are about to be deleted on the newest one. It reports whether they are
// recorded now.
func (p *Platform) keepKinds(ctx context.Context, newest *revision, deleted []*revision) (kept bool, err error) {
	former, own := kindSet{}, kindSet{}
	former.add(newest.former...)
	for _, r := range deleted {
		former.add(p.kindsOfRevision(r)...)
	}
	own.add(p.kindsOfRevision(&revision{kinds: newest.kinds})...)
	maps.DeleteFunc(former, func(kind schema.GroupKind, elsewhere bool) bool {
		ownElsewhere, is := own[kind]
		return is && (ownElsewhere || !elsewhere)
	})
	if includes(newest.former, former.list()) {
		return true, nil
	}
	return p.setFormerKinds(ctx, newest, former.list())
}

// setFormerKinds writes the annotation, and reports false if the revision has changed since it was read: its event reconciles
// the Blueprint again.
func (p *Platform) setFormerKinds(ctx context.Context, r *revision, kinds []handlers.ChildKind) (written bool, err error) {
	var value any // null removes the annotation
	if len(kinds) > 0 {
		if value, err = encodeKinds(kinds); err != nil {
			return false, err
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": r.UID, "resourceVersion": r.ResourceVersion, "annotations": map[string]any{formerKindsKey: value},
	}})
	if err == nil {
		_, err = p.revisionClient().Patch(ctx, r.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: Name})
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("record the kinds of deleted revisions on %s: %w", r.Name, err)
	}
	return true, nil
}

// formerKindsKept is the time after which a kind that no inventory names is forgotten. It is well above the time that a
// handler of an earlier program can run, and the time that the cache of instances can lag.
const formerKindsKept = 10 * time.Minute

// unnamedKinds remembers, by Blueprint, the former kinds that no inventory names, and since when. It may be used concurrently.
type unnamedKinds struct {
	mu    sync.Mutex // guards since
	since map[string]map[schema.GroupKind]time.Time
}

// expired records the kinds that no inventory names now, and returns those that have been unnamed for long enough. The
// others must be checked again after wait.
func (u *unnamedKinds) expired(name string, unnamed []handlers.ChildKind, now time.Time) (expired map[schema.GroupKind]bool, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	next := map[schema.GroupKind]time.Time{}
	expired = map[schema.GroupKind]bool{}
	for _, kind := range unnamed {
		since, known := u.since[name][kind.GroupKind]
		if !known {
			since = now
		}
		next[kind.GroupKind] = since
		if left := formerKindsKept - now.Sub(since); left <= 0 {
			expired[kind.GroupKind] = true
		} else if wait == 0 || left < wait {
			wait = left
		}
	}
	if u.since == nil {
		u.since = map[string]map[schema.GroupKind]time.Time{}
	}
	if u.since[name] = next; len(next) == 0 {
		delete(u.since, name)
	}
	return expired, wait
}

func (u *unnamedKinds) forget(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.since, name)
}

// dropFormerKinds forgets the kinds of deleted revisions of which no instance has children any longer. The returned
// error can be a requeue request.
func (p *Platform) dropFormerKinds(ctx context.Context, b *blueprint.Blueprint, d decision, h history) error {
	newest := h.newest(b.UID)
	if newest == nil || len(newest.former) == 0 || d.onlyCleans() || d.running.revision != newest.Name {
		p.unnamed.forget(b.Name)
		return nil
	}
	lister, err := p.engines.Instances.Lister(d.running.gvr)
	if err != nil {
		return nil // the type is no longer served: the next decision reconciles the Blueprint
	}
	all, err := lister.List(labels.Everything())
	if err != nil {
		return nil // the cache has not synced: servingOf asks for another call
	}
	unnamed := slices.Clone(newest.former)
	for _, object := range all {
		if len(unnamed) == 0 {
			break
		}
		unnamed = slices.DeleteFunc(unnamed, func(kind handlers.ChildKind) bool { return namesKind(object, kind.GroupKind) })
	}
	expired, wait := p.unnamed.expired(b.Name, unnamed, time.Now())
	if len(expired) > 0 {
		kept := slices.DeleteFunc(slices.Clone(newest.former), func(kind handlers.ChildKind) bool { return expired[kind.GroupKind] })
		_, err = p.setFormerKinds(ctx, newest, kept)
	}
	var again error
	if wait > 0 {
		again = dynamiccontroller.RequeueAfter(wait)
	}
	return cmp.Or(err, again)
}

// namesKind reports whether the inventory of an instance names the kind. An inventory that was too large for the cache
// may name any kind.
func namesKind(instance runtime.Object, kind schema.GroupKind) bool {
	m, err := meta.Accessor(instance)
	if err != nil {
		return false
	}
	inventory, has := m.GetAnnotations()[inventoryKey]
	if !has && m.GetAnnotations()[omittedKey] != "" {
		return true
	}
	for entry := range strings.SplitSeq(inventory, ",") {
		if name, _, _ := strings.Cut(entry, "="); name == kind.String() {
			return true
		}
	}
	return false
}
