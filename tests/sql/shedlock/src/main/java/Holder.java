import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;

/** Locks and unlocks as standard input says: "lock NAME MILLISECONDS" and "unlock NAME". Answers true or false. */
public class Holder {
    public static void main(String[] arguments) throws Exception {
        LockProvider provider = new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
                .withJdbcTemplate(new JdbcTemplate(new DriverManagerDataSource(arguments[0])))
                .usingDbTime()
                .build());
        Map<String, SimpleLock> held = new HashMap<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.split(" ");
            if (words[0].equals("lock")) {
                Duration most = Duration.ofMillis(Long.parseLong(words[2]));
                Optional<SimpleLock> lock =
                        provider.lock(new LockConfiguration(Instant.now(), words[1], most, Duration.ZERO));
                lock.ifPresent(each -> held.put(words[1], each));
                System.out.println(lock.isPresent());
            } else {
                held.remove(words[1]).unlock();
                System.out.println(true);
            }
            System.out.flush();
        }
    }
}
