package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// many is how many objects of each type are written.
const many = 20

// tell tells the story. Each line is said after what it says was seen.
func tell(ctx context.Context, say func(string, ...any), c *theCluster, p *platform) error {
	widgets, gadgets, err := defineBoth(ctx, say, c)
	if err != nil {
		return err
	}
	if err := writeMany(ctx, say, c, widgets, gadgets); err != nil {
		return err
	}
	if err := change(ctx, say, c, widgets); err != nil {
		return err
	}
	if err := deleteType(ctx, say, c, p, widgets, gadgets); err != nil {
		return err
	}
	if err := serveAgain(ctx, say, c, widgets); err != nil {
		return err
	}
	if err := unlabel(ctx, say, c, p, gadgets, widgets); err != nil {
		return err
	}
	say("all of this was seen at the API server; the times of releases are from the platform's log")
	return nil
}

// defineBoth defines the two types while the platform runs.
func defineBoth(ctx context.Context, say func(string, ...any), c *theCluster) (widgets, gadgets definedType, err error) {
	widgets, err1 := typeOf(widgetsYAML)
	gadgets, err2 := typeOf(gadgetsYAML)
	if err := errors.Join(err1, err2); err != nil {
		return widgets, gadgets, err
	}
	for _, t := range []definedType{widgets, gadgets} {
		began := time.Now()
		if err := t.define(ctx, c, true); err != nil {
			return widgets, gadgets, err
		}
		if err := see(ctx, t.established(c)); err != nil {
			return widgets, gadgets, err
		}
		established := since(began)
		if err := writeAndSee(ctx, c, t, "first", 1); err != nil {
			return widgets, gadgets, err
		}
		say("defined the type %s; defined -> served: %s (of which the API server took %s to establish it), its first object is Ready",
			t.name(), since(began), established)
	}
	return widgets, gadgets, nil
}

// writeAndSee writes an object and returns when its status says that it was reconciled.
func writeAndSee(ctx context.Context, c *theCluster, t definedType, name string, size int64) error {
	generation, err := t.write(ctx, c, name, size)
	if err != nil {
		return err
	}
	return see(ctx, t.reconciled(c, name, generation))
}

func writeMany(ctx context.Context, say func(string, ...any), c *theCluster, ts ...definedType) error {
	var took []time.Duration
	for i := range many {
		for _, t := range ts {
			name := fmt.Sprintf("number-%d", i)
			generation, err := t.write(ctx, c, name, 1)
			if err != nil {
				return err
			}
			written := time.Now()
			if err := see(ctx, t.reconciled(c, name, generation)); err != nil {
				return err
			}
			took = append(took, time.Since(written))
		}
	}
	slices.Sort(took)
	say("wrote %d objects one by one; written -> reconciled: %s in the middle, %s at most; all are Ready",
		len(took), milliseconds(took[len(took)/2]), milliseconds(took[len(took)-1]))
	return nil
}

func change(ctx context.Context, say func(string, ...any), c *theCluster, t definedType) error {
	generation, err := t.write(ctx, c, "first", 2)
	if err != nil {
		return err
	}
	written := time.Now()
	if err := see(ctx, t.reconciled(c, "first", generation)); err != nil {
		return err
	}
	say("changed an object; written -> reconciled: %s, its status is at generation %d", since(written), generation)
	return nil
}

// deleteType deletes the type and defines it again without the label: what is not served any more is left alone.
func deleteType(ctx context.Context, say func(string, ...any), c *theCluster, p *platform, t, other definedType) error {
	began := time.Now()
	if err := t.delete(ctx, c); err != nil {
		return err
	}
	released, err := seeReleased(ctx, p, t, began)
	if err != nil {
		return err
	}
	if err := see(ctx, t.gone(c)); err != nil {
		return err
	}
	say("deleted the type %s with its objects; deleted -> released: %s", t.name(), released)

	if err := t.define(ctx, c, false); err != nil {
		return err
	}
	if err := see(ctx, t.established(c)); err != nil {
		return err
	}
	if _, err := t.write(ctx, c, "first", 3); err != nil {
		return err
	}
	if err := seeLeftAlone(ctx, c, t, 0, other, 4); err != nil {
		return err
	}
	say("defined it again without the label: its object is left alone, while a %s that was written later is Ready", other.Spec.Names.Singular)
	return nil
}

func serveAgain(ctx context.Context, say func(string, ...any), c *theCluster, t definedType) error {
	began := time.Now()
	if err := t.relabel(ctx, c, true); err != nil {
		return err
	}
	if err := see(ctx, t.reconciled(c, "first", 1)); err != nil {
		return err
	}
	say("gave it the label; labelled -> reconciled: %s, the object that was there is Ready", since(began))
	return nil
}

// unlabel takes the label off a type with objects: from then on they are left alone.
func unlabel(ctx context.Context, say func(string, ...any), c *theCluster, p *platform, t, other definedType) error {
	began := time.Now()
	if err := t.relabel(ctx, c, false); err != nil {
		return err
	}
	released, err := seeReleased(ctx, p, t, began)
	if err != nil {
		return err
	}
	generation, err := t.write(ctx, c, "first", 5)
	if err != nil {
		return err
	}
	if err := seeLeftAlone(ctx, c, t, generation-1, other, 6); err != nil {
		return err
	}
	say("took the label off %s; unlabelled -> released: %s; a changed %s is left alone, while a %s that was changed later is Ready",
		t.name(), released, t.Spec.Names.Singular, other.Spec.Names.Singular)
	return nil
}

// seeReleased returns how long after began the platform said that it has released the type.
func seeReleased(ctx context.Context, p *platform, t definedType, began time.Time) (took string, err error) {
	err = see(ctx, sight{"the platform's log says that " + t.name() + " was released", func(context.Context) error {
		at, said := p.log.said("type released", t, began)
		if !said {
			return errors.New("it does not")
		}
		took = milliseconds(at.Sub(began))
		return nil
	}})
	return took, err
}

// seeLeftAlone makes sure that the platform reconciles what is written to another type now, and has not reconciled what
// was written to t before.
func seeLeftAlone(ctx context.Context, c *theCluster, t definedType, left int64, other definedType, size int64) error {
	if err := writeAndSee(ctx, c, other, "first", size); err != nil {
		return err
	}
	return t.leftAlone(ctx, c, "first", left)
}

func since(began time.Time) string { return milliseconds(time.Since(began)) }

func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// play defines the types and leaves the user to it until ctx ends.
func play(ctx context.Context, say func(string, ...any), c *theCluster) error {
	if _, _, err := defineBoth(ctx, say, c); err != nil {
		return err
	}
	fmt.Printf(`
Ready to be played with, until Ctrl-C. In another terminal:

  export KUBECONFIG=%s
  kubectl get widgets,gadgets
  kubectl patch widget first --type merge -p '{"spec":{"size":7}}' && sleep 0.1 && kubectl get widget first
  kubectl label crd gadgets.%s %s-   # released: change a gadget, and its status stays behind

`, c.kubeconfig, group, label)
	<-ctx.Done()
	return context.Cause(ctx)
}
