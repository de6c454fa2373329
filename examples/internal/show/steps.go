package main

import (
	"context"
	"fmt"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// step is something that is done or waited for.
type step func(ctx context.Context, s *stage) error

// apply applies a manifest.
func apply(file string) step {
	return func(ctx context.Context, s *stage) error {
		obj, err := s.read(file)
		if err != nil {
			return err
		}
		s.say("$ kubectl apply -f %s", filepath.Join("examples", file))
		if err := s.apply(ctx, obj); err != nil {
			return fmt.Errorf("apply %s: %w", file, err)
		}
		s.applied = append(s.applied, obj)
		return nil
	}
}

// remove deletes what a manifest defines, and returns when it is gone.
func remove(file string) step {
	return func(ctx context.Context, s *stage) error {
		obj, err := s.read(file)
		if err != nil {
			return err
		}
		s.say("$ kubectl delete -f %s", filepath.Join("examples", file))
		if err := s.delete(ctx, obj); err != nil {
			return fmt.Errorf("delete %s: %w", file, err)
		}
		return nil
	}
}

// label sets a label of what a manifest defines, or takes it off if the value is empty.
func label(file, key, value string) step {
	return func(ctx context.Context, s *stage) error {
		obj, err := s.read(file)
		if err != nil {
			return err
		}
		change, json := key+"=", fmt.Sprintf("%q", value)
		if value == "" {
			change, json = key+"-", "null"
		} else {
			change += value
		}
		s.say("$ kubectl label -f %s %s", filepath.Join("examples", file), change)
		resource, err := s.resource(ctx, obj)
		if err != nil {
			return err
		}
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, key, json)
		_, err = resource.Patch(ctx, obj.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
}

// start runs an example.
func start(example string) step {
	return func(_ context.Context, s *stage) error {
		s.say("$ bin/examples/%s &", example)
		return s.run(example, example)
	}
}

// startAs runs an example under a name by which the story knows it, and it itself as its Pod's.
func startAs(name, example string) step {
	return func(_ context.Context, s *stage) error {
		s.say("$ POD_NAME=%s bin/examples/%s &", name, example)
		return s.run(example, name)
	}
}

// said waits until a process has said something, after what it was waited to say before.
func said(name, what string) step {
	return func(ctx context.Context, s *stage) error {
		if err := s.processes[name].waitSaid(ctx, what); err != nil {
			return fmt.Errorf("%s has not said %q: %w", name, what, err)
		}
		return nil
	}
}

// silent makes sure that a process has not said something so far.
func silent(name, what string) step {
	return func(_ context.Context, s *stage) error {
		if s.processes[name].hasSaid(what) {
			return fmt.Errorf("%s has said %q, which it should not", name, what)
		}
		return nil
	}
}

// end ends a process as Kubernetes ends a Pod.
func end(name string) step {
	return func(_ context.Context, s *stage) error {
		s.say("$ kill %s", name)
		p := s.processes[name]
		p.stop()
		if !p.cmd.ProcessState.Success() {
			return fmt.Errorf("%s ended with %s", name, p.cmd.ProcessState)
		}
		s.say("# it ended with exit code 0")
		return nil
	}
}
