package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	syncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
	"github.com/redis/rueidis/rueidislock"
)

const ttl = 10 * time.Second

// A cycle acquires and releases the lock of one name. It returns an error if the lock was not granted.
type cycle func(name string) error

// The makers of each client's cycle, by the name after --client.
var clients = map[string]func(masters []string, callers int) (cycle, error){
	"redsync-goredis": withGoRedis,
	"redsync-rueidis": withRueidis,
	"rueidislock":     withRueidislock,
}

// withGoRedis uses redsync as its README shows it.
func withGoRedis(masters []string, callers int) (cycle, error) {
	pools := make([]syncredis.Pool, len(masters))
	for i, master := range masters {
		pools[i] = goredis.NewPool(redis.NewClient(&redis.Options{Addr: master}))
	}
	return redsyncCycle(pools), nil
}

// withRueidis uses redsync on connections that send the commands of all callers in common writes.
func withRueidis(masters []string, callers int) (cycle, error) {
	pools := make([]syncredis.Pool, len(masters))
	for i, master := range masters {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress:       []string{master},
			ForceSingleClient: true,
			DisableCache:      true,
		})
		if err != nil {
			return nil, err
		}
		pools[i] = syncrueidis.NewPool(rueidiscompat.NewAdapter(client))
	}
	return redsyncCycle(pools), nil
}

func redsyncCycle(pools []syncredis.Pool) cycle {
	locks := redsync.New(pools...)
	return func(name string) error {
		mutex := locks.NewMutex(name, redsync.WithExpiry(ttl))
		if err := mutex.TryLock(); err != nil {
			return err
		}
		if ok, err := mutex.Unlock(); !ok || err != nil {
			return fmt.Errorf("%s was not released: %w", name, err)
		}
		return nil
	}
}

// withRueidislock uses a majority of three keys, all on one server.
func withRueidislock(masters []string, callers int) (cycle, error) {
	if len(masters) != 1 {
		return nil, errors.New("rueidislock locks three keys of one server; give one master")
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: masters, ForceSingleClient: true},
		KeyValidity:    ttl,
		NoLoopTracking: true,
		// With the default of 20 ms, an attempt fails when 512 callers wait for one server.
		TryNextAfter: time.Second,
	})
	if err != nil {
		return nil, err
	}
	return func(name string) error {
		held, release, err := locker.TryWithContext(context.Background(), name)
		if err != nil {
			return err
		}
		// The context of a lock that is lost has ended.
		if err := held.Err(); err != nil {
			return err
		}
		release()
		return nil
	}, nil
}
