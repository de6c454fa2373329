package listwatch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestAfter_FiresWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		<-After(ctx, time.Second)
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("waited %s", waited)
		}
		time.AfterFunc(time.Second, cancel)
		<-After(ctx, time.Hour)
		if waited := time.Since(began); waited != 2*time.Second {
			t.Errorf("waited %s", waited)
		}
	})
}
