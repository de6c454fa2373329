package handlers

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/retry"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// applyAll applies stage by stage. A stage that is not all there keeps back those that come after.
func (p *pass) applyAll(ctx context.Context) (children []*unstructured.Unstructured, err error) {
	for _, stage := range p.plan.stages {
		var errs []error
		for _, child := range stage {
			if child.err != nil {
				errs = append(errs, fmt.Errorf("child %s %s of %s: %w", child.kind, child.id.NamespacedKey, p.id, child.err))
				continue
			}
			now, err := p.apply(ctx, child)
			if errors.Is(err, errParentGone) {
				return children, err
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("child %s of %s: %w", child.id, p.id, err))
			}
			if now != nil {
				children = append(children, now)
			}
		}
		if len(errs) > 0 || p.waiting {
			return children, errors.Join(errs...)
		}
	}
	return children, nil
}

// apply makes one child what it should be and returns what it then is. What is decided from a child that has changed since,
// or that was not there and is now, is refused, and decided again from the live one.
func (p *pass) apply(ctx context.Context, child *child) (now *unstructured.Unstructured, err error) {
	find := p.find
	err = retry.OnError(retry.DefaultRetry, isOvertaken, func() error {
		current, err := find(ctx, child)
		if err != nil {
			return fmt.Errorf("read it: %w", err)
		}
		find = p.findLive
		now, err = p.applyOnto(ctx, child, current)
		return err
	})
	return now, err
}

// isOvertaken tells whether a write was refused because the object is not what it was taken for.
func isOvertaken(err error) bool { return apierrors.IsConflict(err) || existsAlready(err) }

// applyOnto decides from what there is, or nil.
func (p *pass) applyOnto(ctx context.Context, child *child, current *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if current == nil {
		return p.create(ctx, child)
	}
	if current.GetDeletionTimestamp() != nil {
		p.waiting = true
		return current, nil
	}
	switch standing := p.standingOf(child, current); standing {
	case ours:
		if p.isCurrent(child, current) {
			return current, nil
		}
	case released:
		if err := p.release(ctx, child.id, current); err != nil {
			return nil, fmt.Errorf("release it: %w", err)
		}
		return nil, fmt.Errorf("%w: its labels match the selector no longer, and it has been released", ErrNotOurs)
	case adoptable:
		if err := p.mayAdopt(); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("%w: %s", ErrNotOurs, standing)
	}
	current, err := p.dropStaleStringData(ctx, child, current)
	if err != nil {
		return nil, err
	}
	// By the UID a child that is gone is not brought back by an old decision, and by the version one that was released, or
	// orphaned, is not taken back: with the reference to an owner that is gone, the garbage collector would delete it.
	return p.write(ctx, child, true, map[string]any{"uid": string(current.GetUID()), "resourceVersion": current.GetResourceVersion()})
}

// standing is whose an object is that is wanted as a child. What is not ours is told in words.
type standing string

const (
	ours      standing = "ours"
	released  standing = "no longer ours"
	adoptable standing = "ours to adopt"
)

func (p *pass) standingOf(child *child, current *unstructured.Unstructured) standing {
	selected := p.config.Selector != nil && p.config.Selector.Matches(labels.Set(current.GetLabels()))
	controller := metav1.GetControllerOfNoCopy(current)
	switch {
	case controller != nil && controller.UID != p.parent.GetUID():
		return standing(fmt.Sprintf("it is controlled by %s %s, UID %s", controller.Kind, controller.Name, controller.UID))
	case child.foreign && p.isOriginal(current, p.parent):
		return ours
	case child.foreign:
		return standing(fmt.Sprintf("it lacks this parent's mark, the label %s and the annotation %s", p.parentLabel(), p.selfKey()))
	case controller != nil && p.config.Selector != nil && !selected:
		return released
	case controller != nil:
		return ours
	case p.isMarked(current, p.parent), selected:
		// A mark without the reference: somebody removed that.
		return adoptable
	default:
		return "nobody controls it, and it is not to be adopted"
	}
}

// find returns nil if there is no such object, of which only the API server itself is believed.
func (p *pass) find(ctx context.Context, child *child) (*unstructured.Unstructured, error) {
	id := child.id
	if p.config.Cache != nil {
		current, err := p.config.Cache.Get(ctx, id.GVR, id.Namespace(), id.Name())
		if err == nil {
			return current, nil
		}
		if !apierrors.IsNotFound(err) && !isUncached(err) {
			return nil, err
		}
	}
	return p.findLive(ctx, child)
}

func (p *pass) findLive(ctx context.Context, child *child) (*unstructured.Unstructured, error) {
	id := child.id
	current, err := Live(p.config.Client).Get(ctx, id.GVR, id.Namespace(), id.Name())
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return current, err
}

// isUncached tells whether the cache cannot say.
func isUncached(err error) bool {
	return errors.Is(err, dynamiccontroller.ErrNotServed) || errors.Is(err, dynamiccontroller.ErrNotSynced)
}

// isCurrent tells whether nothing is to be written.
func (p *pass) isCurrent(child *child, current *unstructured.Unstructured) bool {
	known := p.memory.recall(p.id, child.id)
	if known.written.isAfter(current) {
		return known.hash == child.hash // the cache has yet to show what was written, be it this or something else
	}
	if covers(child.apply.Object, current.Object) && p.ownsApplied(child, current) {
		return true
	}
	if known.hash != child.hash || known.written.uid != current.GetUID() {
		return false
	}
	now, err := p.signature(child, current)
	return err == nil && now.values == known.signature.values && (now.owned == "" || now.owned == known.signature.owned)
}

// ownsApplied tells whether nobody has taken over an applied field. If the cache keeps no managedFields, nobody can tell.
func (p *pass) ownsApplied(child *child, current *unstructured.Unstructured) bool {
	fields, known := appliedFields(current, p.config.Name, "")
	if !known {
		return true
	}
	for name, value := range child.apply.Object {
		switch name {
		case "apiVersion", "kind":
		case "metadata":
			for name, value := range value.(map[string]any) {
				if name != "name" && name != "namespace" && !fields["f:metadata"].ownsAll(map[string]any{name: value}) {
					return false
				}
			}
		default:
			if !fields.ownsAll(map[string]any{name: value}) {
				return false
			}
		}
	}
	return true
}

// signature is what a child looks like where something was applied, and who owns that, as digests. The latter is empty if the
// object does not tell: a cache may keep no managedFields.
type signature struct{ values, owned string }

func (p *pass) signature(child *child, current *unstructured.Unstructured) (s signature, err error) {
	if s.values, err = digest(projection(child.apply.Object, current.Object)); err != nil {
		return signature{}, err
	}
	if fields, known := appliedFields(current, p.config.Name, ""); known {
		s.owned, err = digest(fields)
	}
	return s, err
}

// write applies the child with what else its metadata is to say.
func (p *pass) write(ctx context.Context, child *child, force bool, metadata map[string]any) (*unstructured.Unstructured, error) {
	apply := child.apply.DeepCopy()
	for field, value := range metadata {
		if err := unstructured.SetNestedField(apply.Object, value, "metadata", field); err != nil {
			return nil, err
		}
	}
	objects := resource(p.config.Client, child.id.GVR, child.id.Namespace())
	now, err := objects.Apply(ctx, child.id.Name(), apply, metav1.ApplyOptions{FieldManager: p.config.Name, Force: force})
	if err != nil {
		return nil, fmt.Errorf("apply it: %w", err)
	}
	signature, err := p.signature(child, now)
	if err != nil {
		return nil, err
	}
	p.memory.remember(p.id, child.id, childMemory{hash: child.hash, written: versionOf(now), signature: signature})
	return now, nil
}
